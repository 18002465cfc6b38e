"""Mixed precision and gradients that are accumulated in parts."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from pof.trainer.recipe import Recipe, recipe_from
from pof.trainer.run import run_recipe


def plain_net() -> nn.Module:
    """Without BatchNorm, whose statistics would depend on how a batch is split."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))


def recipe(method: str, **run: object) -> Recipe:
    return recipe_from(
        {
            "model": {"name": f"{__name__}:plain_net"},
            "data": {"name": "digits", "batch": 64},
            "optimizer": {"learning_rate": 0.05},
            "run": {"epochs": 3, **run},
            "table": {"sparsities": [0.5], "bands": [], "calibrate": False},
            "method": {"name": method},
        }
    )


def losses(folder: Path) -> list[float]:
    records = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "epoch"]


@pytest.mark.parametrize("method", ["dense", "pof", "cram"])
def test_accumulated_gradients_are_those_of_the_whole_batch(method: str, tmp_path: Path) -> None:
    run_recipe(recipe(method), tmp_path / "whole")
    run_recipe(recipe(method, accumulate=5), tmp_path / "parts")  # 64 images in parts of 13 and 12
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), abs=2e-4)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=5e-3, rtol=0)


@pytest.mark.parametrize("method", ["dense", "pof", "dpf", "cram"])
def test_bfloat16_trains_and_its_weights_stay_float32(method: str, tmp_path: Path) -> None:
    outcome = run_recipe(recipe(method, precision="bf16"), tmp_path / "half")
    assert outcome.accuracy is not None
    assert outcome.accuracy > 0.6
    assert {value.dtype for value in load_file(tmp_path / "half" / "model.safetensors").values()} == {torch.float32}
    run_recipe(recipe(method), tmp_path / "single")
    half, single = losses(tmp_path / "half"), losses(tmp_path / "single")
    assert half != single, "it did run in half precision"
    assert half == pytest.approx(single, rel=0.25)
