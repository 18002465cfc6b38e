"""Everything that `pof` does, on one network of others: what passes, what the plan covers, how fast it is.

    python bench/one_network.py timm/coat_tiny FILE [--parts operations speeds]

`breadth.py` runs this in a process of its own for each network. Writes JSON to FILE.
"""

import argparse
import json
import re
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from foreign_networks import all_networks
from network_operations import OPERATIONS, Subject, speeds, update


def main() -> None:
    """Run one network, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("file", type=Path)
    parser.add_argument("--parts", nargs="+", choices=["operations", "speeds"], default=["operations", "speeds"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("default")
        subject = Subject(all_networks()[options.name])
        refused = subject.network.refused
        for operation in OPERATIONS if "operations" in options.parts else ():
            _try(subject, operation)
        if "speeds" in options.parts and not refused:
            _try(subject, speeds)
        if "operations" in options.parts and not refused:
            _try(subject, update)  # last, as it changes the weights of what was timed
    subject.found |= {
        "warnings": sorted({_without_folders(str(warning.message)) for warning in given if _is_of_pof(warning)}),
        "seconds": round(time.perf_counter() - start, 1),
    }
    options.file.write_text(json.dumps(subject.found))


def _without_folders(message: str) -> str:
    """A message that names files without the folders of this machine."""
    return re.sub(r"'[^']*/([^'/]+)'", r"'\1'", message)


def _is_of_pof(warning: warnings.WarningMessage) -> bool:
    """Whether pof gave a warning: it points at the line that called pof, which is one of ours."""
    return Path(warning.filename).name == "network_operations.py" or "pof" in Path(warning.filename).parts


def _try(subject: Subject, operation: Callable[[Subject], dict[str, Any] | None]) -> None:
    name = operation.__name__
    try:
        details = operation(subject)
    except Exception as error:  # any failure is a result
        subject.found["operations"][name] = f"{type(error).__name__}: {error}"[:400]
        return
    subject.found["operations"][name] = "pass"
    if details:
        subject.found[name] = details


if __name__ == "__main__":
    main()
