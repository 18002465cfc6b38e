"""The tree itself: nothing of a machine or a registry in it, paths that records name are there."""

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = sorted([*(ROOT / "lab" / "records").rglob("*.json"), *(ROOT / "bench" / "records").glob("*.json")])
HOSTS = [
    f"{name}.{end}" for name, end in (("npmjs", "org"), ("pypi", "org"), ("pythonhosted", "org"), ("deb.debian", "org"))
]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    found = {}
    for file in files:
        if file.is_file() and file.suffix not in (".pof", ".xz", ".npz", ".png"):
            found[str(file.relative_to(ROOT))] = file.read_text("utf-8")
    return found


def test_no_host_of_a_package_registry(texts: dict[str, str]) -> None:
    assert [(name, host) for name, text in texts.items() for host in HOSTS if host in text] == []


def test_no_loose_module_has_come_back() -> None:
    assert len(list((ROOT / "src" / "pof").glob("*.py"))) <= 6


def test_no_test_file_is_too_long() -> None:
    long = {
        str(f.relative_to(ROOT)): n
        for f in (ROOT / "tests").rglob("*.py")
        if (n := len(f.read_text().splitlines())) > 400
    }
    assert long == {}


def test_the_wheel_has_nothing_of_the_laboratory() -> None:
    assert 'where = ["src"]' in (ROOT / "pyproject.toml").read_text()
    assert not list((ROOT / "src").rglob("lab"))


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.name)
def test_paths_that_a_record_names_are_there(file: Path) -> None:
    text = file.read_text()
    json.loads(text)
    for path in re.findall(r"(?:lab|src|recipes|bench)/[\w./-]+\.(?:pof|toml|json|py)", text):
        assert (ROOT / path).exists(), path
    # What a recipe starts from is named as seen from lab/, so that moving the laboratory does not change the recipe.
    for path in re.findall(r'"weights": "(weights/[^"]+)"', text):
        assert (ROOT / "lab" / path).exists(), path
