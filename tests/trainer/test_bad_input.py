"""Mistakes that users make: each is one line that says what to do, and nothing is lost."""

import fcntl
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pof.errors import PofError
from pof.trainer.recipe import Recipe, recipe_from
from pof.trainer.run import Outcome, run_recipe
from pof.trainer.weight_files import load_weights, read_weights

OWN = """
from torch import nn

def build(num_classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 8), nn.Linear(8, num_classes))

def five():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 5))

def nothing_to_prune():
    return nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
"""


def recipe(**changes: dict[str, Any]) -> Recipe:
    table: dict[str, dict[str, Any]] = {
        "model": {"name": "digits_convnet"},
        "data": {"name": "digits", "batch": 256},
        "run": {"epochs": 1},
        "table": {"sparsities": [0.0, 0.5], "bands": [], "calibrate": False},
    }
    for name, values in changes.items():
        table[name] = {**table.get(name, {}), **values}
    return recipe_from(table)


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_model_of_a_user.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "resnet20"}}, "'resnet20' does not take 'digits' images"),
        ({"model": {"name": "own_model_of_a_user:five"}}, r"must give \(batch, 10\) for 'digits', not \(1, 5\)"),
        ({"model": {"name": ":build"}}, "is not a known model: use one of"),
        ({"model": {"name": "own_model_of_a_user.py:build"}}, "without .py"),
        ({"model": {"name": "not_there:build"}}, "looked for here and on PYTHONPATH"),
        ({"run": {"precision": "fp16"}}, "needs a GPU"),
    ],
)
@pytest.mark.usefixtures("own_model")
def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        run_recipe(recipe(**changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"method": "pof"}, "write method.name='pof'"),
        ({"settings": {"foo": 1}}, "unknown key 'settings'"),
        ({"epochs": 2}, "unknown key 'epochs': it is run.epochs"),
        ({"optimizer": {"nesterov": True, "momentum": 0.0}}, "needs a momentum"),
        ({"run": {"seed": -1}}, "run.seed=-1"),
        ({"run": {"seed": 2**65}}, "run.seed="),
        ({"run": {"checkpoint_steps": -3}}, "run.checkpoint_steps=-3"),
    ],
)
def test_wrong_recipes(table: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        recipe_from(table)


@pytest.mark.usefixtures("own_model")
def test_a_model_gets_the_number_of_classes(tmp_path: Path) -> None:
    assert run_recipe(recipe(model={"name": "own_model_of_a_user:build"}), tmp_path / "run").finished


@pytest.mark.usefixtures("own_model")
def test_a_network_of_which_nothing_can_be_pruned_is_trained(tmp_path: Path) -> None:
    outcome = run_recipe(recipe(model={"name": "own_model_of_a_user:nothing_to_prune"}), tmp_path / "run")
    assert outcome.finished
    assert outcome.table == []


def test_the_command_finds_a_model_in_the_present_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    (tmp_path / "r.toml").write_text(
        '[data]\nname = "digits"\n[run]\nepochs = 1\n[table]\nsparsities = []\nbands = []\n'
    )
    script = Path(sys.executable).with_name("pof")
    command = [str(script), "train", "r.toml", "--model", "mine:build", "--out", "run", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["finished"]


@pytest.mark.parametrize("line", [b"5\n", b"{}\n", b'{"kind": "start"}\n', b"\xff\xfe\n", b"{]\n"])
def test_damaged_records(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "records.jsonl").write_bytes(line)
    with pytest.raises(PofError, match=r"records\.jsonl"):
        run_recipe(recipe(), tmp_path)


def test_a_checkpoint_of_another_recipe_is_not_gone_on_with(tmp_path: Path) -> None:
    run_recipe(recipe(), tmp_path)
    with pytest.raises(PofError, match=r"run.epochs is 1 there, 2 here"):
        run_recipe(recipe(run={"epochs": 2}), tmp_path)
    (tmp_path / "records.jsonl").unlink()
    with pytest.raises(PofError, match="of another recipe"):
        run_recipe(recipe(run={"epochs": 2}), tmp_path)
    assert run_recipe(recipe(run={"evaluate_every": 7}), tmp_path).finished, "which changes nothing of the outcome"
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(PofError, match="is gone"):
        run_recipe(recipe(), tmp_path)


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PofError, match="another process is training in"):
            run_recipe(recipe(), tmp_path)
    (tmp_path / ".checkpoint.safetensors.123.tmp").write_bytes(b"left by a kill")
    assert run_recipe(recipe(), tmp_path).finished
    assert not list(tmp_path.glob("*.tmp"))


def test_a_run_in_another_thread_and_a_variable_of_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_recipe(recipe(), tmp_path / "plain")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(run_recipe(recipe(), tmp_path / "thread")))
    thread.start()
    thread.join()
    assert found[0].finished
    both = [load_file(tmp_path / name / "model.safetensors") for name in ("plain", "thread")]
    assert all(torch.equal(value, both[1][name]) for name, value in both[0].items())


def test_weights_that_are_none(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    good = model.state_dict()
    cases = {
        "integers.pth": ({1: torch.ones(1)}, "is not a state_dict"),
        "sparse.pth": ({"weight": torch.ones(2, 2).to_sparse(), "bias": good["bias"]}, "is not a state_dict"),
        "complex.pth": ({**good, "weight": good["weight"] * 1j}, "is complex"),
        "nan.pth": ({**good, "bias": torch.tensor([0.0, float("nan")])}, "holds NaN or inf in 'bias'"),
    }
    for name, (state, message) in cases.items():
        torch.save(state, tmp_path / name)
        with pytest.raises(PofError, match=message):
            load_weights(model, tmp_path / name)
    (tmp_path / "empty.pth").write_bytes(b"")
    with pytest.raises(PofError, match="empty or cut off"):
        read_weights(tmp_path / "empty.pth")
    save_file(good, tmp_path / "checkpoint.safetensors", metadata={"checksum": "1"})
    with pytest.raises(PofError, match="is a checkpoint of a run"):
        read_weights(tmp_path / "checkpoint.safetensors")
