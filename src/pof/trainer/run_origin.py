"""What made a run, and whether the records in a folder belong to that run or to another."""

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pof.errors import PofError
from pof.trainer.recipe import Recipe, is_of
from pof.trainer.run_records import Records

if TYPE_CHECKING:
    # Files of weights are loaded without it.
    from accelerate import Accelerator

RECORDS = "records.jsonl"


def open_records(folder: Path, recipe: Recipe, engine: "Accelerator") -> Records:
    """Open the records in `folder`; raise if they belong to another recipe."""
    records = Records(folder / RECORDS)
    if engine.is_main_process:
        records.mend()
    engine.wait_for_everyone()
    first = records.origin()
    if first is not None and not is_of(recipe, first["recipe"]):
        difference = _difference(first["recipe"], json.loads(json.dumps(recipe.as_dict())))
        raise PofError(
            f"{str(folder)!r} holds a run of another recipe ({difference}): choose another --out, or delete it"
        )
    return records


def _difference(there: Any, here: Any, path: str = "") -> str:
    """Describe the first key in which two recipes differ."""
    if isinstance(there, dict) and isinstance(here, dict):
        for key in dict.fromkeys((*there, *here)):
            if there.get(key) != here.get(key):
                return _difference(there.get(key), here.get(key), f"{path}.{key}".lstrip("."))
    return f"{path} is {there!r} there, {here!r} here"


def origin_of(recipe: Recipe) -> dict[str, Any]:
    """Return what the run is made with: its recipe, versions and machine."""
    return {"recipe": recipe.as_dict(), "recipe_hash": recipe.hash, **made_with()}


def made_with() -> dict[str, Any]:
    """Return the versions and the machine that something is made with."""
    return {
        "versions": {
            "pof": version("pof"),
            "commit": commit_of(Path(__file__).parents[3]),
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "machine": {"processor": platform.processor() or platform.machine(), "threads": torch.get_num_threads()},
    }


def commit_of(folder: Path) -> str | None:
    """Return the commit of a git checkout, with "-dirty" if files differ from it; None if `folder` is not one.

    A folder inside a checkout does not count: what is installed there is not part of its commits.
    """
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude", "*", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
