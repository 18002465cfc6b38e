"""The facts of a network are those of `pof.Elastic`, of its file, and of the comparison that the README has."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shown import facts, network
from torch import nn

import pof
from pof.core.library import core
from pof.errors import PofError
from pof.report.network_facts import ALL, IMAGES_AT_ONCE, STEPS, described, times_of


def test_facts_of_a_model() -> None:
    found, model = facts(speed=False), network()
    plan = pof.plan(model)
    assert [layer["name"] for layer in found["layers"]] == [*(entry.name for entry in plan), ALL]
    assert found["layers"][-1]["count"] == plan.weights
    assert all(sum(layer["bins"]) == layer["count"] for layer in found["layers"])
    assert found["stages"][-1]["gives"] == "dense"
    assert found["dense_bytes"] == 4 * sum(v.numel() for v in model.state_dict().values())
    assert len(json.dumps(found["layers"], allow_nan=False)) < 2000 * len(found["layers"]), "pages stay small"


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_alphas_are_those_of_the_core(magnitudes: Any) -> None:
    model = network()
    layer = described(model, magnitudes)["layers"][0]
    weight = model.get_parameter(layer["name"]).detach().double()
    if magnitudes == "unit":
        weight = weight / weight.flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.dim() - 1))
    sorted_ = np.sort(weight.abs().reshape(-1).numpy())
    for low, high in ((30, 70), (50, 90), (98, 99)):
        first, last = round(low / STEPS * len(sorted_)), round(high / STEPS * len(sorted_))
        assert sum(layer["sums"][low:high]) == pytest.approx(sorted_[first:last].sum(), rel=1e-4)


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("kind", ["plain", "pof", "pruned"])
def test_all_layers_together_are_pruned_as_globally(kind: str, magnitudes: Any) -> None:
    model = network(kind)
    layers = described(model, magnitudes)["layers"][:-1]
    elastic = pof.Elastic(model, scope="global", magnitudes=magnitudes)
    reach = len(layers[0]["together"]) - 1
    for step in (1, 30, 57, 90, reach):
        elastic.prune(step / STEPS)
        zeros = {row.name: row.zeros for row in elastic.layers()}
        assert zeros == {layer["name"]: max(layer["together"][step], layer["zeros"]) for layer in layers}
    with pytest.raises(PofError, match="the most for scope='global'"):
        elastic.prune((reach + 1) / STEPS)


def test_small_layers_are_counted_as_they_are_pruned() -> None:
    model = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 3), nn.Linear(3, 1), nn.Linear(1, 1))
    layers = described(model, "raw")["layers"][:-1]
    elastic = pof.Elastic(model)
    for step in range(1, STEPS):
        elastic.prune(step / STEPS)
        shown = [layer["alone"].get(step, round(step / STEPS * layer["count"])) for layer in layers]
        assert [row.zeros for row in elastic.layers()] == shown, step
    assert [len(layer["alone"]) > 0 for layer in layers] == [True] * 4
    for layer, row in zip(layers, elastic.layers(), strict=True):
        assert sum(layer["sums"]) == pytest.approx(float(_dense(elastic, row.name).abs().sum()), rel=1e-4)


def _dense(elastic: pof.Elastic, name: str) -> torch.Tensor:
    with elastic.at(0.0):
        return elastic.model.get_parameter(name).detach().clone()


def test_outliers_and_nothing_but_zeros() -> None:
    model = nn.Sequential(nn.Linear(100, 20), nn.Linear(20, 10)).eval()
    with torch.no_grad():
        model.get_parameter("0.weight").zero_()[0, 0] = 5.0
        model.get_parameter("1.weight").zero_()
    one, none, _ = described(model, "raw")["layers"]
    assert (one["zeros"], sum(one["bins"]), one["bins"][-1]) == (1999, 2000, 1)
    assert (none["zeros"], sum(none["bins"]), sum(none["sums"])) == (200, 200, 0.0)


@pytest.mark.parametrize("given", [False, True])
def test_labels_come_from_the_facts(given: bool, tmp_path: Path) -> None:
    model = network()
    pof.save(model, tmp_path / "m.pof", values="int8", scope="global")
    found = described(model, "raw", tmp_path / "m.pof" if given else None)
    expected = ("file", False, "global", "int8") if given else ("estimated", True, "layer", "exact")
    assert tuple(found[key] for key in ("statistics", "packed", "scope", "values")) == expected
    assert described(nn.Sequential(nn.Linear(4, 4)), "raw")["statistics"] is None


@pytest.mark.skipif(core() is None, reason="needs the compiled core")
def test_speed_is_against_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = network(), []

    def ratio(fast: Any, plain: nn.Module, images: torch.Tensor, rounds: int) -> float:
        seen.append((plain, tuple(images.shape), torch.get_num_threads(), rounds > 2))
        return 2.5

    monkeypatch.setattr("pof.report.network_facts.ratio_to_plain", ratio)
    times = times_of(model, torch.randn(1, 1, 8, 8), "raw")
    assert seen == [(model, (IMAGES_AT_ONCE, 1, 8, 8), 1, True)]
    assert (times["ratio"], times["batch"]) == (2.5, IMAGES_AT_ONCE)
    assert times["plain"] == pytest.approx(2.5 * times["compiled"])
    large = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3)).eval()
    assert times_of(large, torch.randn(1, 1, 80, 80), "raw")["batch"] == 1, "large images would take minutes"
