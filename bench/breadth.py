"""What `pof` does with more than a hundred networks that others wrote: torchvision's, timm's and transformers'.

    python bench/breadth.py                        all networks; goes on where it stopped. Needs `make foreign`
    python bench/breadth.py --only timm coat       those whose names contain one of these
    python bench/breadth.py --speeds               only measure speeds; --no-speeds leaves them out
    python bench/breadth.py --again                also what the record has for this commit already
    python bench/breadth.py --failed --again       only those of which something failed
    python bench/breadth.py --page                 only write docs/breadth.md anew from the record

Each network has a process, with one thread. Its result is in the record, bench/records/breadth.json, as soon as it is
there, with the commit that last changed what is measured. Leave the machine alone while speeds are measured. Weights
are random; a network that is not installed or takes too long is a failure with a reason.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from breadth_page import PAGE, failures, page
from foreign_networks import all_networks
from pof.file.atomic_write import replacing
from timing import machine

HERE = Path(__file__).parent
RECORD = HERE / "records" / "breadth.json"
ROOMS = ("core", "ranking", "planning", "elastic", "file", "runtime")
MEASURED = (*(f"src/pof/{room}" for room in ROOMS), "setup.py", "bench/*network*.py", "bench/torchvision_stubs.py")
"""What a result depends on: it stays valid while nothing here has changed."""


def main() -> None:
    """Run the networks that the record lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="PART", help="parts of names")
    some = parser.add_mutually_exclusive_group()
    some.add_argument(
        "--speeds", dest="parts", action="store_const", const=["speeds"], default=["operations", "speeds"]
    )
    some.add_argument("--no-speeds", dest="parts", action="store_const", const=["operations"])
    parser.add_argument("--failed", action="store_true")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each network")
    parser.add_argument("--record", type=Path, default=RECORD)
    options = parser.parse_args()
    record = json.loads(options.record.read_text()) if options.record.exists() else {"networks": {}}
    if not options.page:
        _sweep(options, record)
    if options.record == RECORD:
        PAGE.write_text(page(record))
    found = failures(record)
    print("\n".join(found) if found else "nothing failed")
    sys.exit(bool(found))


def _sweep(options: argparse.Namespace, record: dict[str, Any]) -> None:
    commit = measured_commit()
    names = [n for n in all_networks() if not options.only or any(part in n for part in options.only)]
    known = record["networks"]
    if options.failed:
        bad = {line.split(":")[0] for line in failures(record)}
        names = [name for name in names if name in bad]
    todo = [name for name in names if options.again or _lacks(known.get(name, {}), options.parts, commit)]
    for number, name in enumerate(todo, 1):
        found = run_network(name, options.parts, options.timeout)
        wrong = ", ".join(key for key, result in found["operations"].items() if result != "pass")
        print(f"{number}/{len(todo)} {name}: {found['seconds']:.0f} s{', failed: ' if wrong else ''}{wrong}")
        sys.stdout.flush()
        known[name] = joined(known.get(name, {}), found, options.parts, commit)
        record["networks"] = {n: known[n] for n in all_networks() if n in known}
        record |= {"bench": "breadth", "machine": {**machine(), "threads": 1, "commit": commit}}
        _write(options.record, record)


def joined(kept: dict[str, Any], found: dict[str, Any], parts: list[str], commit: str | None) -> dict[str, Any]:
    """The result of a network with the parts that were run now, and the other parts as they were."""

    def now(key: str) -> bool:
        return ("speeds" if key == "speeds" else "operations") in parts

    operations = {key: text for key, text in kept.get("operations", {}).items() if not now(key) and key != "process"}
    return {
        "library": found["library"],
        **{key: value for key, value in kept.items() if not now(key)},
        **{key: value for key, value in found.items() if now(key)},
        "operations": {**operations, **found["operations"]},
        "commits": {**kept.get("commits", {}), **dict.fromkeys(parts, commit)},
    }


def _lacks(found: dict[str, Any], parts: list[str], commit: str | None) -> bool:
    """Whether a part is missing from a result, or is that of another commit."""
    commits = found.get("commits", {})
    return any(commits.get(part) != commit for part in parts)


def run_network(name: str, parts: list[str], timeout: float) -> dict[str, Any]:
    """The result of one network, in a process of its own."""
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        command = [sys.executable, str(HERE / "one_network.py"), name, str(file), "--parts", *parts]
        try:
            done = subprocess.run(
                command, env=environment, timeout=timeout, check=False, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            reason = f"not done after {timeout:.0f} s"
        else:
            if file.exists():
                found: dict[str, Any] = json.loads(file.read_text())
                return found
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            reason = f"exit {done.returncode}: {last[:300]}"
    seconds = round(time.perf_counter() - start, 1)
    return {"library": name.split("/")[0], "operations": {"process": reason}, "seconds": seconds}


def measured_commit() -> str | None:
    """The last commit that changed what is measured, with a plus sign if there are changes since."""
    commands = (["git", "log", "-1", "--format=%h"], ["git", "status", "--porcelain"])
    found = []
    for command in commands:
        git = subprocess.run([*command, "--", *MEASURED], capture_output=True, text=True, check=False, cwd=HERE.parent)
        found.append(git.stdout.strip())
    return (found[0] + "+" * bool(found[1])) or None


def _write(path: Path, record: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
