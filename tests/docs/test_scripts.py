"""`--json`: one document on standard output, with just the keys that docs/scripts.md lists."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pof.cli.main import VERBS, main

PAGE = Path(__file__).parents[2] / "docs" / "scripts.md"
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
STATE = {"sparsity", "recover_from", "scope", "zeros", "accuracy", "calibrated"}


def documented(verb: str) -> list[str]:
    """The keys of a verb's row, without those in brackets."""
    return re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", ROWS[verb]))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with a file of its own."""
    folder = tmp_path_factory.mktemp("scripts")
    recipe = Path(__file__).parents[2] / "recipes" / "digits-pof.toml"
    changes = ("run.epochs=1", "table.sparsities=[0.5]", "table.bands=[]")
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(recipe), "--out", str(folder / "run"), "--json", *words]) == 0
    assert main(["pack", str(folder / "run"), str(folder / "model.pof"), "--json"]) == 0
    return folder


CALLS = {
    "eval": ["{run}/run", "--sparsity", "0.5"],
    "sweep": ["{run}/model.pof", "--sparsities", "0.5,0.8"],
    "choose": ["{run}/run", "--max-bytes", "1e6"],
    "pack": ["{run}/run", "{out}/model.pof"],
    "unpack": ["{run}/model.pof", "{out}/model.pth"],
    "inspect": ["{run}/model.pof"],
    "compile": ["{run}/model.pof", "--sparsity", "0.8"],
    "export": ["{run}/model.pof", "{out}/model.pth"],
    "report": ["{run}/run", "--no-speed"],
}


def test_every_verb_that_prints_figures_is_listed() -> None:
    assert set(ROWS) == set(VERBS) - {"completion"}
    assert {*CALLS, "train", "demo", "fit"} == set(ROWS), "fit has a test of its own, with images"


@pytest.mark.parametrize("verb", CALLS)
def test_keys_are_those_of_the_page(verb: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main([verb, *(word.format(run=run, out=tmp_path) for word in CALLS[verb]), "--json"]) == 0
    found: Any = json.loads(capsys.readouterr().out)
    assert list(found[0] if isinstance(found, list) else found) == documented(verb)
    if verb == "sweep":
        assert set(found["rows"][0]) == STATE


def test_keys_of_train_and_demo(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "digits-pof.toml"
    words = ["--set", "run.epochs=1", "--set", "table.sparsities=[0.5]", "--set", "table.bands=[]"]
    capsys.readouterr()
    assert main(["train", str(recipe), "--out", str(run / "run"), "--json", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["already"]
    assert list(found) == documented("train")
    assert set(found["table"][0]) == STATE
    record = json.loads((PAGE.parents[1] / "bench" / "records" / "demo.json").read_text())
    assert list(record) == documented("demo")
