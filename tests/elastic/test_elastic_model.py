"""Elastic: what it promises of the model, of its states and numbers, and which settings it refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pof
from tests.small_models import MixedNet, bits, planned

# --- the contract ------------------------------------------------------------------------------------------------


def test_the_lines_of_the_issue() -> None:
    model = MixedNet()
    before = bits(model)
    elastic = pof.Elastic(model)
    weights = sum(weight.numel() for weight in planned(model).values())

    elastic.prune(0.7)
    assert elastic.state == pof.State(0.7, 0.7)
    assert elastic.sparsity == pytest.approx(0.7, abs=2 / weights)
    assert {name: int((weight == 0).sum()) for name, weight in planned(model).items()} == {
        "depthwise.weight": round(0.7 * 72),
        "up.weight": round(0.7 * 96),
        "fc.weight": round(0.7 * 30),
    }
    elastic.recover(0.3, 0.7)
    assert elastic.state == pof.State(0.7, 0.3)
    assert elastic.sparsity == pytest.approx(0.3, abs=2 / weights)
    with elastic.at(0.9) as inside:
        assert inside is elastic
        assert elastic.sparsity == pytest.approx(0.9, abs=2 / weights)
    assert elastic.state == pof.State(0.7, 0.3)
    with elastic.at(0.9, recover_from=0.5):
        assert elastic.sparsity == pytest.approx(0.5, abs=2 / weights)
    elastic.calibrate([torch.randn(4, 3, 6, 6)])
    elastic.restore()
    assert elastic.state == pof.State(0.0, 0.0)
    assert elastic.sparsity == 0
    assert bits(model) == before


def test_the_model_is_not_rewritten() -> None:
    model = MixedNet()
    parameters = dict(model.named_parameters())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    types = {name: type(module) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(0.5)
    elastic.recover(0.2, 0.8)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert {name: type(module) for name, module in model.named_modules()} == types
    assert list(model.state_dict()) == keys
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.is_leaf for parameter in model.parameters())


def test_only_the_plan_is_touched() -> None:
    model = MixedNet()
    before = bits(model)
    pof.Elastic(model).prune(0.9)
    after = bits(model)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"depthwise.weight", "up.weight", "fc.weight"}


def test_layers_lists_zeros_band_and_alpha() -> None:
    model = MixedNet()
    dense = planned(model)
    elastic = pof.Elastic(model)
    assert [(row.name, row.weights, row.zeros, row.band, row.alpha) for row in elastic.layers()] == [
        ("depthwise.weight", 72, 0, 0, 0.0),
        ("up.weight", 96, 0, 0, 0.0),
        ("fc.weight", 30, 0, 0, 0.0),
    ]
    elastic.recover(0.25, 0.75)
    for row in elastic.layers():
        magnitudes = dense[row.name].abs().double().flatten().sort().values
        low, high = round(0.25 * row.weights), round(0.75 * row.weights)
        assert (row.zeros, row.band) == (low, high - low)
        assert row.alpha == pytest.approx(magnitudes[low:high].mean().item(), rel=1e-6)
    elastic.prune(0.75)
    assert {(row.band, row.alpha) for row in elastic.layers()} == {(0, 0.0)}
    table = str(elastic.layers()).splitlines()
    assert table[0].split() == ["weight", "weights", "zeros", "sparsity", "band", "alpha", "dead", "rows"]
    dead = int((model.depthwise.weight == 0).all(dim=(1, 2, 3)).sum())
    assert table[1].split() == ["depthwise.weight", "72", "54", "0.75", "0", "0", str(dead)]


def test_sparsity_counts_what_is_there_now() -> None:
    model = nn.Linear(10, 10)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.weight.zero_()
    assert elastic.sparsity == 1.0


def test_zeros_that_were_there_count() -> None:
    model = nn.Linear(10, 10)
    with torch.no_grad():
        model.weight[:3] = 0.0
    elastic = pof.Elastic(model)
    assert elastic.sparsity == 0.3
    elastic.prune(0.2)
    assert elastic.sparsity == 0.3, "the zeros are the smallest, so nothing else goes"
    elastic.recover(0.1, 0.5)
    assert elastic.sparsity == 0.3, "a zero has no sign, so the band does not fill it"
    elastic.prune(0.4)
    assert elastic.sparsity == 0.4


@pytest.mark.parametrize(
    ("go", "text"),
    [
        (lambda e: e.restore(), "dense"),
        (lambda e: e.prune(0.7), "pruned at 0.7"),
        (lambda e: e.recover(0.3, 0.7), "recovered 0.3-0.7"),
        (lambda e: e.recover(0.7, 0.7), "pruned at 0.7"),
        (lambda e: e.recover(0.0, 0.0), "dense"),
        (lambda e: e.prune(-0.0), "dense"),
    ],
)
def test_the_state_is_readable(go: Callable[[pof.Elastic], None], text: str) -> None:
    elastic = pof.Elastic(MixedNet())
    elastic.prune(0.5)
    go(elastic)
    assert str(elastic.state) == text


@pytest.mark.parametrize("zero", [0, 0.0, 1e-9, np.float64(0.0)])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_sparsity_zero_is_exactly_dense(zero: float, magnitudes: Any, scope: Any) -> None:
    model = MixedNet()
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes, scope=scope)
    elastic.prune(0.8)
    assert bits(model) != before
    elastic.prune(zero)
    assert bits(model) == before
    elastic.recover(0.2, 0.8)
    elastic.recover(zero, zero)
    assert bits(model) == before


@pytest.mark.parametrize("number", [1 / 2, np.float64(0.5), np.float32(0.5)])
def test_numbers_of_any_kind(number: float) -> None:
    model = nn.Linear(4, 4)
    pof.Elastic(model).prune(number)
    assert int((model.weight == 0).sum()) == 8


# --- two of them, and bad settings -------------------------------------------------------------------------------


def test_two_elastics_take_turns() -> None:
    """Each sees what the other does as somebody else's change, unless that was undone."""
    model = MixedNet()
    before = bits(model)
    raw, unit = pof.Elastic(model), pof.Elastic(model, magnitudes="unit")
    raw.prune(0.5)
    with pytest.raises(pof.WeightsChangedError):
        unit.prune(0.5)
    raw.restore()
    unit.refresh()
    unit.prune(0.5)
    with pytest.raises(pof.WeightsChangedError):
        raw.prune(0.9)
    unit.restore()
    raw.prune(0.9)
    raw.restore()
    assert bits(model) == before


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "scope='row'": {"scope": "row"},
    "magnitudes='unit-norm'": {"magnitudes": "unit-norm"},
    "include='nothing*'": {"include": "nothing*"},
    "exclude='classifier'": {"exclude": ["classifier"]},
    "sparsities='head'": {"sparsities": {"head": 0.5}},
    "sparsities['fc']=50": {"sparsities": {"fc": 50}},
}


@pytest.mark.parametrize("words", BAD_SETTINGS)
def test_bad_settings_are_one_line(words: str) -> None:
    with pytest.raises(pof.PofError) as caught:
        pof.Elastic(MixedNet(), **BAD_SETTINGS[words])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", [None, 3, MixedNet])
def test_what_is_no_model_is_one_line(model: Any) -> None:
    with pytest.raises(pof.PofError, match=r"model is .*: pass a torch\.nn\.Module"):
        pof.Elastic(model)


def test_a_second_elastic_on_a_pruned_model_says_so() -> None:
    model = MixedNet()
    first = pof.Elastic(model)
    first.prune(0.7)
    with pytest.warns(UserWarning, match=r"an earlier Elastic left this model pruned at 0.7.*restore\(\)"):
        pof.Elastic(model)
    first.recover(0.3, 0.7)
    del first
    with pytest.warns(UserWarning, match=r"recovered 0.3-0.7"):
        second = pof.Elastic(model)
    second.prune(0.5)
    second.refresh()
    pof.Elastic(model)  # whoever refreshes means it


def test_a_second_elastic_on_a_dense_or_changed_model_says_nothing() -> None:
    model, dense = MixedNet(), MixedNet().state_dict()
    first = pof.Elastic(model)
    first.prune(0.7)
    first.restore()
    second = pof.Elastic(model)
    second.prune(0.7)
    model.load_state_dict(dense)
    pof.Elastic(model)
    with pof.Elastic(model).at(0.5):
        pass
    pof.Elastic(model)


def test_a_sparsity_that_small_layers_cannot_reach_is_reported() -> None:
    elastic = pof.Elastic(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 1)))
    elastic.prune(0.8)
    assert sum(row.zeros for row in elastic.layers()) == 8
    with pytest.warns(UserWarning, match=r"pruned at 0.95, 2 weights fewer than asked for are pruned"):
        elastic.prune(0.95)
    assert [row.zeros for row in elastic.layers()] == [7, 1]
