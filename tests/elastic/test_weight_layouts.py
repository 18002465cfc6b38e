"""Weights of any shape and memory layout, and ties: the same weights go, and the memory stays."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import pof
from tests.small_models import bits


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("weight", [0.5, -3.0, 0.0])
def test_one_weight(magnitudes: Any, weight: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
    elastic = pof.Elastic(model, magnitudes=magnitudes)
    for sparsity in (0.4, 0.5, 0.6, 0.999):
        elastic.prune(sparsity)
        assert model.weight.item() == weight, "no layer is emptied"
    elastic.recover(0.1, 0.9)
    assert model.weight.item() == weight, "alpha is the only magnitude there is"
    elastic.restore()
    assert model.weight.item() == weight


def test_one_weight_in_global_scope_is_never_pruned() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 30))
    with torch.no_grad():
        model[0].weight.fill_(1e-6)
    elastic = pof.Elastic(model, scope="global")
    elastic.prune(0.9)
    assert [row.zeros for row in elastic.layers()] == [0, 28]


@pytest.mark.parametrize("shape", [(6, 4), (3, 2, 2, 2)])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_ties_go_by_index(shape: tuple[int, ...], magnitudes: Any) -> None:
    model = nn.Linear(4, 6) if len(shape) == 2 else nn.Conv2d(2, 3, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.weight.view(-1)[::2].neg_()
    elastic = pof.Elastic(model, include="weight", magnitudes=magnitudes)
    for sparsity in (0.9, 0.25, 0.5):
        elastic.prune(sparsity)
        count = round(sparsity * 24)
        zero = model.weight.detach().flatten() == 0
        assert zero.tolist() == [True] * count + [False] * (24 - count)


def test_all_zeros_is_fine_in_every_state() -> None:
    for magnitudes, scope in itertools.product(("raw", "unit"), ("layer", "global")):
        model = nn.Linear(6, 4)
        nn.init.zeros_(model.weight)
        elastic = pof.Elastic(model, magnitudes=magnitudes, scope=scope)  # type: ignore[arg-type]
        for go in (lambda e: e.prune(0.5), lambda e: e.recover(0.2, 0.6), lambda e: e.restore()):
            go(elastic)
            assert not model.weight.any()
            assert model.weight.isfinite().all()
        assert elastic.sparsity == 1.0


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    grid=st.booleans(),
    scope=st.sampled_from(["layer", "global"]),
    magnitudes=st.sampled_from(["raw", "unit"]),
    ends=st.tuples(st.floats(0, 0.95), st.floats(0, 0.95)),
)
def test_masks_nest(seed: int, grid: bool, scope: Any, magnitudes: Any, ends: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 8), nn.Conv1d(2, 7, 3), nn.Conv1d(7, 7, 3, groups=7))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
            if grid:  # multiples of 0.5, never zero: many ties
                parameter.copy_(parameter.mul(2).floor().add(0.5))
    elastic = pof.Elastic(model, include="*.weight", scope=scope, magnitudes=magnitudes)
    zeros = []
    for sparsity in sorted(ends):
        elastic.prune(sparsity)
        zeros.append([model.get_parameter(entry.name).detach() == 0 for entry in elastic.plan])
        assert sum(int(zero.sum()) for zero in zeros[-1]) == (
            round(sparsity * 135)
            if scope == "global"
            else sum(round(sparsity * entry.weights) for entry in elastic.plan)
        )
    assert all(bool((sparser | ~denser).all()) for denser, sparser in zip(*zeros, strict=True))
    elastic.recover(*sorted(ends))
    left = [model.get_parameter(entry.name).detach() == 0 for entry in elastic.plan]
    assert all(torch.equal(a, b) for a, b in zip(left, zeros[0], strict=True)), "a band leaves what sp1 prunes"


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("tied", [False, True])
def test_channels_last_stays_and_computes_the_same(magnitudes: Any, scope: Any, tied: bool) -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.ConvTranspose2d(12, 8, 3, groups=2), nn.Conv2d(8, 8, 3, groups=8)
    )
    if tied:  # values on a grid: the index decides, and it must be that of the row-major order
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.copy_(parameter.mul(8).round().div(8))
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    strides = [parameter.stride() for parameter in last.parameters()]
    assert strides != [parameter.stride() for parameter in plain.parameters()]
    before = bits(last)
    elastics = [pof.Elastic(model, magnitudes=magnitudes, scope=scope) for model in (plain, last)]
    for sp1, sp2 in ((0.7, 0.7), (0.2, 0.6), (0.0, 0.9)):
        for elastic in elastics:
            elastic.recover(sp1, sp2)
        assert bits(plain) == bits(last)
        assert [parameter.stride() for parameter in last.parameters()] == strides
    elastics[1].restore()
    assert bits(last) == before
    assert [parameter.stride() for parameter in last.parameters()] == strides


def test_channels_last_of_a_large_layer_is_the_same() -> None:
    plain = nn.Conv2d(128, 64, 3)
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert plain.weight.numel() > 1 << 16
    for band in ((0.9, 0.9), (0.4, 0.7)):
        for magnitudes in ("raw", "unit"):
            for model in (plain, last):
                elastic = pof.Elastic(model, include="weight", magnitudes=magnitudes)  # type: ignore[arg-type]
                elastic.recover(*band)
            assert bits(plain) == bits(last)
            for model in (plain, last):
                with torch.no_grad():
                    model.weight.copy_(torch.randn(64, 128, 3, 3, generator=torch.Generator().manual_seed(5)))


def gapped() -> nn.Parameter:
    return nn.Parameter(torch.randn(8, 12)[:, ::2])


def transposed() -> nn.Parameter:
    return nn.Parameter(torch.randn(6, 8).t())


def offset() -> nn.Parameter:
    return nn.Parameter(torch.randn(100)[13:61].view(8, 6))


@pytest.mark.parametrize("make", [gapped, transposed, offset])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_parameter_of_any_layout(make: Callable[[], nn.Parameter], magnitudes: Any, scope: Any) -> None:
    model, plain = nn.Linear(6, 8), nn.Linear(6, 8)
    model.weight = make()
    stride = model.weight.stride()
    around = model.weight.untyped_storage().nbytes()
    with torch.no_grad():
        plain.weight.copy_(model.weight)
    dense = plain.weight.detach().clone()
    elastics = [pof.Elastic(each, magnitudes=magnitudes, scope=scope) for each in (model, plain)]
    for sp1, sp2 in ((0.5, 0.5), (0.25, 0.75), (0.0, 0.9), (0.0, 0.0)):
        for elastic in elastics:
            elastic.recover(sp1, sp2)
        assert torch.equal(model.weight, plain.weight)
        assert model.weight.stride() == stride
    assert torch.equal(model.weight, dense)
    assert model.weight.untyped_storage().nbytes() == around


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_rows_that_lose_nothing_keep_their_bits_in_any_layout(dtype: torch.dtype) -> None:
    """Sums over another memory layout round otherwise: norms that are compared must be taken alike."""
    model = nn.Linear(50, 40)
    model.weight = nn.Parameter(torch.randn(40, 100, dtype=dtype)[:, ::2])
    dense = model.weight.detach().clone()
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(3 / 2000)
    untouched = (model.weight.detach() != 0).all(1)
    assert int(untouched.sum()) >= 37
    assert torch.equal(model.weight[untouched], dense[untouched])
    elastic.recover(0.3, 0.7)
    with pof.pruned(model, 0.5):
        pass
    elastic.restore()  # and this is no false alarm
    assert torch.equal(model.weight, dense)


def test_memory_around_a_view_is_not_touched() -> None:
    whole = torch.randn(8, 12)
    others = whole[:, 1::2].clone()
    model = nn.Linear(6, 8)
    model.weight = nn.Parameter(whole[:, ::2])
    elastic = pof.Elastic(model)
    elastic.prune(0.9)
    elastic.recover(0.1, 0.9)
    assert torch.equal(whole[:, 1::2], others)


def test_parameters_that_are_views_of_one_flat_buffer() -> None:
    """As optimisers with flat buffers leave them."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    start = 0
    for parameter in model.parameters():
        parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    dense = flat.clone()
    elastic = pof.Elastic(model)
    for band in ((0.5, 0.5), (0.2, 0.8)):
        elastic.recover(*band)
        assert elastic.sparsity == pytest.approx(band[0], abs=0.01)
    elastic.restore()
    assert torch.equal(flat, dense)
