"""scope="global", and sparsities and globs of single layers."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import pof
from tests.small_models import MixedNet, bits

# --- scope="global" ----------------------------------------------------------------------------------------------


def global_counts_by_loop(keys: dict[str, list[float]], sparsity: float) -> dict[str, int]:
    """Rank everything together, but for the largest 1 % (at least one) of each layer, which always stay."""
    candidates = []
    for position, (name, values) in enumerate(keys.items()):
        order = sorted(range(len(values)), key=lambda i, values=values: (values[i], i))  # type: ignore[misc]
        most = len(values) - max(1, math.ceil(0.01 * len(values)))
        candidates += [(values[i], position, i, name) for i in order[:most]]
    chosen = sorted(candidates)[: round(sparsity * sum(map(len, keys.values())))]
    return {name: sum(item[3] == name for item in chosen) for name in keys}


@pytest.mark.parametrize("sparsity", [0.05, 0.3, 0.6, 0.9, 0.98])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_global_ranks_all_layers_together_and_empties_none(sparsity: float, magnitudes: Any) -> None:
    model = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 30), nn.Linear(30, 10))
    with torch.no_grad():
        model[1].weight.mul_(1e-4)  # raw ranking would empty it first
        model[2].weight[:5] *= 100
    keys = {}
    for name, layer in model.named_children():
        weight = layer.weight.detach().double()
        if magnitudes == "unit":  # rows scaled to a root mean square of one, so that wide layers compare with narrow
            weight = weight / weight.norm(dim=1, keepdim=True) * math.sqrt(weight.shape[1])
        keys[f"{name}.weight"] = weight.abs().flatten().tolist()
    elastic = pof.Elastic(model, scope="global", magnitudes=magnitudes)
    elastic.prune(sparsity)
    zeros = {row.name: row.zeros for row in elastic.layers()}
    assert zeros == global_counts_by_loop(keys, sparsity)
    assert sum(zeros.values()) == round(sparsity * 800)
    assert all(row.zeros < row.weights for row in elastic.layers())


def test_global_band_lies_between_the_two_global_counts() -> None:
    model = MixedNet()
    elastic = pof.Elastic(model, scope="global")
    elastic.prune(0.3)
    low = {row.name: row.zeros for row in elastic.layers()}
    elastic.prune(0.8)
    high = {row.name: row.zeros for row in elastic.layers()}
    elastic.recover(0.3, 0.8)
    assert {row.name: (row.zeros, row.zeros + row.band) for row in elastic.layers()} == {
        name: (low[name], high[name]) for name in low
    }


def test_global_beyond_its_floor_is_an_error_and_touches_nothing() -> None:
    model = MixedNet()
    before = bits(model)
    elastic = pof.Elastic(model, scope="global")
    for call in (lambda: elastic.prune(0.999), lambda: elastic.recover(0.2, 0.999)):
        with pytest.raises(pof.PofError, match=r"sparsity=0\.999 .*scope='layer'"):
            call()
        assert bits(model) == before
    elastic.prune(0.5)
    halfway = bits(model)
    with pytest.raises(pof.PofError, match="scope='layer'"):
        elastic.prune(0.999)
    assert bits(model) == halfway
    elastic.restore()
    assert bits(model) == before


# --- per-layer overrides -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_a_fixed_sparsity_holds_whenever_the_model_is_not_dense(magnitudes: Any) -> None:
    model = MixedNet()
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes, sparsities={"fc": 0.5, "up.weight": 0.0})

    def zeros() -> dict[str, int]:
        return {row.name: row.zeros for row in elastic.layers()}

    elastic.prune(0.9)
    assert zeros() == {"depthwise.weight": round(0.9 * 72), "up.weight": 0, "fc.weight": 15}
    elastic.prune(0.1)
    assert zeros() == {"depthwise.weight": round(0.1 * 72), "up.weight": 0, "fc.weight": 15}
    elastic.recover(0.2, 0.9)
    assert zeros() == {"depthwise.weight": round(0.2 * 72), "up.weight": 0, "fc.weight": 6}
    assert {row.name: row.band for row in elastic.layers()}["fc.weight"] == 9, "the band ends at the fixed sparsity"
    elastic.recover(0.7, 0.9)
    assert zeros()["fc.weight"] == 15, "a band that would begin above the fixed sparsity is empty"
    elastic.prune(0.0)
    assert bits(model) == before


def test_a_fixed_sparsity_in_global_scope_leaves_the_rest_to_share() -> None:
    model = MixedNet()
    elastic = pof.Elastic(model, scope="global", sparsities={"fc": 0.5})
    elastic.prune(0.9)
    zeros = {row.name: row.zeros for row in elastic.layers()}
    assert zeros["fc.weight"] == 15
    assert zeros["depthwise.weight"] + zeros["up.weight"] == round(0.9 * (72 + 96))
    elastic.recover(0.3, 0.9)
    zeros = {row.name: row.zeros for row in elastic.layers()}
    assert zeros["fc.weight"] == 9
    assert zeros["depthwise.weight"] + zeros["up.weight"] == round(0.3 * (72 + 96))


def test_include_and_exclude_reach_the_elastic_and_survive_a_refresh() -> None:
    model = MixedNet()
    elastic = pof.Elastic(model, include=(glob for glob in ("stem", "fc")), exclude=iter(["fc"]))
    for _ in range(2):
        assert [row.name for row in elastic.layers()] == ["stem.weight"]
        elastic.refresh()


def test_the_overrides_are_those_of_when_it_was_made() -> None:
    sparsities = {"fc": 0.5}
    model = MixedNet()
    elastic = pof.Elastic(model, sparsities=sparsities)
    sparsities["fc"] = 0.9
    elastic.refresh()
    elastic.prune(0.1)
    assert int((model.fc.weight == 0).sum()) == 15
