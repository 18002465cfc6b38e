"""The penalty: its value and gradient are those of plain loops, in both forms, and pull rows to their masks."""

import copy
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from penalty_by_loop import (
    LAYERS,
    PLANNED,
    added,
    cosines_by_loop,
    gradient,
    kept_by_loop,
    loop,
    made,
    penalty_of,
    rows,
)
from torch import nn

import pof
from pof.sphere.penalty import Penalty
from tests.small_models import grouped_convnet


def test_by_hand() -> None:
    layer = nn.Linear(2, 2, bias=False)
    # Unit rows: (0.6, -0.8) and (5/13, 12/13); in order 5/13 < 0.6 < 0.8 < 12/13.
    layer.weight = nn.Parameter(torch.tensor([[3.0, -4.0], [5.0, 12.0]]))
    # 25 %: the first row is whole, m = (1, -1)/sqrt(2), cos = 1.4/sqrt(2); of the second 12/13 is left.
    expected = (1.4 / math.sqrt(2) - 1 + 12 / 13 - 1) ** 2 / 2
    assert penalty_of(layer, 0.25)(0).item() == pytest.approx(expected, rel=1e-5)
    # 50 %: one weight a row, cos 0.8 and 12/13.
    assert penalty_of(layer, 0.5)(0).item() == pytest.approx((0.2 + 1 / 13) ** 2 / 2, rel=1e-5)
    assert penalty_of(layer, 0.5, weight=0.1)(0).item() == pytest.approx(0.1 * (0.2 + 1 / 13) ** 2 / 2, rel=1e-5)
    # 75 %: the first row has no mask, so it leaves both the sum and n.
    penalty = penalty_of(layer, 0.75)
    assert penalty(0).item() == pytest.approx((1 / 13) ** 2, rel=1e-5)
    # 2 (cos - 1) (m - cos u) / ||w|| with m = (0, 1), u = (5, 12)/13, ||w|| = 13.
    slope = 2 * (12 / 13 - 1) / 13
    second = [slope * (0 - 12 / 13 * 5 / 13), slope * (1 - 12 / 13 * 12 / 13)]
    torch.testing.assert_close(gradient(penalty, layer.weight), torch.tensor([[0.0, 0.0], second]))


@pytest.mark.parametrize("tr", [0.05, 0.3, 0.7, 0.9])
@pytest.mark.parametrize("name", LAYERS)
def test_value_and_gradient_are_the_plain_loop(name: str, tr: float) -> None:
    layer = made(name)
    value, slope = loop(layer, tr)
    penalty = penalty_of(layer, tr)
    torch.testing.assert_close(penalty(0).detach().double(), value, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(gradient(penalty, layer.weight), slope, rtol=1e-6, atol=1e-12)
    assert layer.weight.grad is None
    returned = penalty.add_gradient(0)
    torch.testing.assert_close(returned.double(), value, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(layer.weight.grad, slope, rtol=1e-6, atol=1e-12)


@settings(max_examples=60, deadline=None)
@example(name="transposed 1d, grouped", seed=309, tr=0.5, zero_rows=False, zeros=0.84375)
@given(
    name=st.sampled_from(sorted(LAYERS)),
    seed=st.integers(0, 2**16),
    tr=st.floats(0.01, 0.99),
    zero_rows=st.booleans(),
    zeros=st.floats(0, 0.9),
)
def test_weights_and_rows_of_zeros(name: str, seed: int, tr: float, zero_rows: bool, zeros: float) -> None:
    layer = made(name, seed, torch.float32)
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < zeros] = 0.0
        if zero_rows:
            for row in rows(layer, layer.weight)[::2]:
                row.zero_()
    value, slope = loop(layer, tr)
    penalty = penalty_of(layer, tr)
    largest = float(slope.abs().max())
    # The terms that cancel in a row are as large as one over its norm.
    norms = [norm for row in rows(layer, layer.weight) if (norm := float(row.detach().norm())) > 0]
    rounding = 1e-6 / min([1.0, *norms])
    for result in (gradient(penalty, layer.weight), added(penalty, layer.weight)):
        torch.testing.assert_close(result.double(), slope, rtol=1e-4, atol=1e-5 * largest + rounding)
    torch.testing.assert_close(penalty(0).detach().double(), value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["linear", "transposed, grouped", "one weight"])
def test_a_layer_of_zeros_costs_nothing(name: str) -> None:
    layer = made(name, dtype=torch.float32)
    nn.init.zeros_(layer.weight)
    penalty = penalty_of(layer)
    assert penalty(0).item() == 0.0
    assert not gradient(penalty, layer.weight).any()
    assert not added(penalty, layer.weight).any()
    assert penalty.layers()["weight"]["term_per_row"] == 0.0


def test_rows_whose_squares_underflow_do_not_poison_the_gradient() -> None:
    # Weight decay drives dead filters to such values; 1e-25 squared is 0 in float32.
    layer = nn.Linear(2, 2)
    layer.weight = nn.Parameter(torch.tensor([[1e-25, 2e-25], [3.0, 4.0]]))
    penalty = penalty_of(layer, 0.25)
    by_autograd, in_closed_form = gradient(penalty, layer.weight), added(penalty, layer.weight)
    assert by_autograd.isfinite().all()
    assert in_closed_form.isfinite().all()
    torch.testing.assert_close(in_closed_form, by_autograd)


@pytest.mark.parametrize("name", ["linear", "depthwise", "transposed, grouped"])
def test_gradcheck(name: str) -> None:
    layer = made(name)
    penalty = penalty_of(layer, 0.6, weight=0.3)
    assert penalty(0).dtype is torch.float64, "a float64 model gets a float64 penalty"
    assert torch.autograd.gradcheck(lambda _: penalty(0), (layer.weight,))


def test_float64_is_not_rounded_to_float32() -> None:
    layer = made("conv2d")
    value, slope = loop(layer, 0.7)
    penalty = penalty_of(layer, weight=0.1)
    torch.testing.assert_close(added(penalty, layer.weight), 0.1 * slope, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(gradient(penalty, layer.weight), 0.1 * slope, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(penalty(0).detach(), 0.1 * value, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("has_grad", [False, True], ids=["no grad yet", "grad present"])
@pytest.mark.parametrize("channels_last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.float64, 1e-7), (torch.bfloat16, 2**-6), (torch.float16, 2**-9)],
)
def test_add_gradient_is_the_loss_form(
    dtype: torch.dtype, tolerance: float, channels_last: bool, has_grad: bool
) -> None:
    scale = torch.tensor(8.0)
    forms = []
    for closed in (False, True):
        model = grouped_convnet(dtype, channels_last=channels_last)
        penalty = Penalty(model, tr=(0.9, 0.5), steps=10, weight=0.7)
        if has_grad:
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        if closed:
            value = penalty.add_gradient(4, scale=scale)
        else:
            value = penalty(4)
            (scale * value).backward()
        assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
        forms.append((value.detach(), dict(model.named_parameters())))
    (value, by_autograd), (value_too, in_closed_form) = forms
    torch.testing.assert_close(value, value_too, rtol=1e-5, atol=0)
    for name, parameter in by_autograd.items():
        other = in_closed_form[name]
        if parameter.grad is None:
            assert other.grad is None
            assert name not in PLANNED
            continue
        assert other.grad is not None
        assert other.grad.dtype == dtype
        assert other.grad.stride() == other.stride()
        largest = float(parameter.grad.abs().max())
        torch.testing.assert_close(other.grad, parameter.grad, rtol=tolerance, atol=tolerance * largest)


def test_add_gradient_to_some_weights() -> None:
    model = grouped_convnet()
    penalty = Penalty(model, tr=0.6, weight=0.5)
    value = penalty.add_gradient(0, ["2.weight"])
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["2.weight"]
    expected, slope = loop(model[2], 0.6)
    torch.testing.assert_close(value.double(), 0.5 * expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(model[2].weight.grad.double(), 0.5 * slope, rtol=1e-4, atol=1e-7)


def test_frozen_weights_get_no_gradient_in_either_form() -> None:
    model = grouped_convnet()
    model[2].weight.requires_grad_(False)
    penalty = Penalty(model, tr=0.6)
    value = penalty(0)
    value.backward()
    assert model[2].weight.grad is None
    model.zero_grad()
    assert float(penalty.add_gradient(0)) == pytest.approx(value.item(), rel=1e-6)
    assert model[1].weight.grad is not None
    assert model[2].weight.grad is None


def test_a_networks_penalty_is_the_sum_over_its_layers() -> None:
    model = grouped_convnet(torch.float64)
    layers = [model[1], model[2], model[3], model[5]]
    expected = 0.2 * sum(float(loop(layer, 0.7)[0]) for layer in layers)
    penalty = Penalty(model, tr=0.7, weight=0.2)
    assert penalty(0).item() == pytest.approx(expected, rel=1e-6)
    assert list(penalty.layers()) == PLANNED
    without = Penalty(model, tr=0.7, weight=0.2, exclude="5")
    assert without(0).item() == pytest.approx(expected - 0.2 * float(loop(model[5], 0.7)[0]), rel=1e-6)
    planned = Penalty(model, tr=0.7, weight=0.2, plan=pof.plan(model, exclude="5"))
    assert torch.equal(planned(0), without(0))


def test_the_penalty_leaves_everything_else_alone() -> None:
    model = grouped_convnet()
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    penalty = Penalty(model, tr=0.7)
    penalty(0)
    assert torch.equal(torch.get_rng_state(), random)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not [name for name, p in model.named_parameters() if p.grad is not None]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_autocast_and_no_grad_do_not_change_the_value() -> None:
    penalty = Penalty(grouped_convnet(), tr=0.7)
    expected = penalty(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(penalty(0), expected, rtol=1e-6, atol=0)
    with torch.no_grad():
        inside = penalty(0)
    assert not inside.requires_grad
    torch.testing.assert_close(inside, expected.detach(), rtol=1e-6, atol=0)


def test_the_pull_on_a_filter_does_not_depend_on_the_width() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6, 20, dtype=torch.float64)
    slopes = []
    for copies in (1, 2, 5):
        layer = nn.Linear(20, 6 * copies).double()
        layer.weight = nn.Parameter(weight.repeat(copies, 1))
        slopes.append(gradient(penalty_of(layer), layer.weight)[:6])
    assert slopes[0].abs().max() > 1e-3
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(slopes[2], slopes[0], rtol=1e-6, atol=1e-12)


def test_the_pull_is_twice_the_mean_shortfall_times_the_cosines_slope() -> None:
    layer = made("conv2d")
    weight = layer.weight.detach().clone().requires_grad_()
    found = cosines_by_loop(layer, weight, kept_by_loop(layer, 0.7))
    assert len(found) == 6
    mean = sum(found).item() / 6
    slopes = torch.autograd.grad(sum(found), weight)[0]
    torch.testing.assert_close(
        gradient(penalty_of(layer), layer.weight), 2 * (mean - 1) * slopes, rtol=1e-6, atol=1e-12
    )


def test_descending_it_brings_the_rows_to_their_masks() -> None:
    layer = made("linear", dtype=torch.float32)
    penalty = penalty_of(layer, 0.7)
    optimizer = torch.optim.SGD([layer.weight], lr=0.05)
    values, means = [], []
    for step in range(200):
        optimizer.zero_grad()
        value = penalty(step)
        value.backward()
        optimizer.step()
        values.append(value.item())
        means.append(penalty.mean_cosine)
    assert means[0] < 0.9
    assert means[-1] > 0.99
    assert values[-1] < 0.01 * values[0]


def test_the_cosine_of_a_gaussian_row_is_the_measured_one() -> None:
    # Findings, part 1: the cosine between a Gaussian weight vector and its own mask.
    torch.manual_seed(0)
    layer = nn.Linear(4000, 25)
    nn.init.normal_(layer.weight)
    for tr, expected in ((0.5, 0.899), (0.7, 0.851), (0.8, 0.785), (0.9, 0.652)):
        penalty = penalty_of(layer, tr)
        penalty(0)
        assert penalty.mean_cosine == pytest.approx(expected, abs=0.003)
