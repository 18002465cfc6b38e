"""`run.trackers`: the figures of a run in TensorBoard, read back from its files."""

import sys
from pathlib import Path

import pytest

from pof.errors import PofError
from pof.trainer.recipe import recipe_from
from pof.trainer.run import run_recipe

RECIPE = {
    "model": {"name": "digits_convnet"},
    "data": {"name": "digits", "batch": 64},
    "run": {"epochs": 2, "trackers": ["tensorboard"]},
    "table": {"sparsities": [0.0, 0.5], "bands": [[0.3, 0.7]]},
    "method": {"name": "pof"},
}


def test_figures_are_in_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outcome = run_recipe(recipe_from(RECIPE), tmp_path / "run")
    (folder,) = {file.parent for file in (tmp_path / "run").rglob("events.out*") if file.parent.name == "pof"}
    found = EventAccumulator(str(folder))
    found.Reload()
    tags = set(found.Tags()["scalars"])
    assert {"loss", "learning_rate", "penalty", "cosine", "tr", "epoch/images_per_second", "final/accuracy"} <= tags
    assert {"final/0.5-0.5 layer", "final/0.5-0.5 layer calibrated", "final/0.3-0.7 layer"} <= tags
    steps = [entry.step for entry in found.Scalars("loss")]
    assert steps == list(range(10, outcome.step + 1, 10))
    assert found.Scalars("final/accuracy")[0].value == pytest.approx(outcome.accuracy)


def test_a_run_does_not_depend_on_who_watches(tmp_path: Path) -> None:
    alone = {**RECIPE, "run": {"epochs": 2}}
    assert recipe_from(alone).hash == recipe_from(RECIPE).hash


def test_wrong_trackers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PofError, match=r"run\.trackers='tensorbord' must be one of .*tensorboard"):
        run_recipe(recipe_from({**RECIPE, "run": {"trackers": ["tensorbord"]}}), tmp_path / "run")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PofError, match="'wandb' needs a package that is not installed: pip install wandb"):
        run_recipe(recipe_from({**RECIPE, "run": {"trackers": ["wandb"]}}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
