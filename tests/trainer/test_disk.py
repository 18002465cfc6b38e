"""Disks that are full and folders that cannot be written: one clear line, and the last good file is kept."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pof.errors import PofError
from pof.file.atomic_write import replacing
from pof.trainer.recipe import Recipe, recipe_from
from pof.trainer.run import run_recipe

RECIPE = """
[model]
name = "digits_convnet"
[data]
name = "digits"
[run]
epochs = {epochs}
"""
NOBODY = 65534


def quick(epochs: int) -> Recipe:
    return recipe_from(
        {"model": {"name": "digits_convnet"}, "data": {"name": "digits"}, "run": {"epochs": epochs}, "name": "recipe"}
    )


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nothing can be made in the folder; root, whom no permissions stop, becomes nobody meanwhile."""
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def train_with_small_files(folder: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """`pof train` in a process that cannot write more than `limit` bytes to a file, as on a disk that fills up."""
    recipe = folder.parent / "recipe.toml"
    recipe.write_text(RECIPE.format(epochs=2))
    script = (
        "import resource, sys; from pof.cli.main import main;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}));"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", script, "train", str(recipe), "--out", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_checkpoint_that_does_not_fit_leaves_the_former_one(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def stop_in_the_second_epoch(event: object) -> None:
        if (folder / "checkpoint.safetensors").exists():
            raise InterruptedError

    with pytest.raises(InterruptedError):
        run_recipe(quick(2), folder, stop_in_the_second_epoch)
    before = (folder / "checkpoint.safetensors").read_bytes()
    failed = train_with_small_files(folder, limit=100_000)
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].startswith("pof: cannot write")
    assert "what was there before is kept" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    assert [path.name for path in folder.glob(".*.tmp")] == [], "no temporary file is left"
    assert run_recipe(quick(2), folder).finished, "with room again it goes on"


def test_records_that_do_not_fit(tmp_path: Path) -> None:
    failed = train_with_small_files(tmp_path / "run", limit=100)
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].startswith("pof: cannot write")
    assert "records.jsonl" in failed.stderr


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    run_recipe(quick(1), tmp_path / "warm")  # imports and opens what the next call must not look for
    folder = tmp_path / "run"
    folder.mkdir()
    with read_only(folder), pytest.raises(PofError, match=r"cannot (write|read|make)"):
        run_recipe(quick(1), folder)
    assert list(folder.iterdir()) == []


def test_replacing_keeps_the_old_file_when_the_block_fails(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("new")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"
    with pytest.raises(PofError, match="No such file or directory; what was there before is kept"), replacing(path):
        pass
