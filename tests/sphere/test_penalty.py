import copy
import io
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pof
from pof.errors import PofError
from pof.sphere.penalty import Penalty

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

LAYERS: dict[str, Any] = {
    "linear": lambda: nn.Linear(7, 5),
    "one filter": lambda: nn.Linear(9, 1),
    "one weight": lambda: nn.Linear(1, 1),
    "one weight a filter": lambda: nn.Linear(1, 9),
    "conv1d": lambda: nn.Conv1d(3, 4, 3),
    "conv2d": lambda: nn.Conv2d(4, 6, 3),
    "conv3d": lambda: nn.Conv3d(2, 3, 2),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(6, 6, 3, groups=6),
    "transposed": lambda: nn.ConvTranspose2d(6, 4, 3),
    "transposed, grouped": lambda: nn.ConvTranspose2d(6, 4, 3, groups=2),
    "transposed, depthwise": lambda: nn.ConvTranspose2d(4, 4, 3, groups=4),
    "transposed 1d, grouped": lambda: nn.ConvTranspose1d(6, 9, 2, groups=3),
}


def made(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    layer: nn.Module = LAYERS[name]().to(dtype)
    return layer


def rows(layer: nn.Module, weight: Tensor) -> list[Tensor]:
    """The rows of a weight, one an output unit, by plain slicing."""
    if not isinstance(layer, TRANSPOSED):
        return list(weight)
    per_group = weight.shape[0] // layer.groups
    return [
        weight[group * per_group : (group + 1) * per_group, unit]
        for group in range(layer.groups)
        for unit in range(weight.shape[1])
    ]


def kept_by_loop(layer: nn.Module, tr: float) -> set[int]:
    """Flat indices of what Prune(W, tr) keeps: all unit rows of a layer ranked together, ties by index."""
    weight = layer.weight.detach().double()
    indices = torch.arange(weight.numel()).view_as(weight)
    magnitude: dict[int, float] = {}
    for row, index in zip(rows(layer, weight), rows(layer, indices), strict=True):
        norm = math.sqrt(sum(value * value for value in row.flatten().tolist()))
        for value, i in zip(row.flatten().tolist(), index.flatten().tolist(), strict=True):
            magnitude[i] = abs(value) / norm if norm else 0.0
    order = sorted(magnitude, key=lambda i: (magnitude[i], i))
    return set(order[round(tr * weight.numel()) :])


def cosines_by_loop(layer: nn.Module, weight: Tensor, kept: set[int]) -> list[Tensor]:
    """cos_j = <w_j, m_j> / ||w_j|| with m_j = sign(w_j) * kept_j / sqrt(#m_j), for the rows that have a mask."""
    indices = torch.arange(weight.numel()).view_as(weight)
    found = []
    for row, index in zip(rows(layer, weight), rows(layer, indices), strict=True):
        keep = torch.tensor([i in kept for i in index.flatten().tolist()]).view_as(index)
        mask = row.detach().sign() * keep
        if mask.any():
            mask = mask / math.sqrt(int(mask.count_nonzero()))
            found.append((row * mask).sum() / row.square().sum().sqrt())
    return found


def ltr_by_loop(layer: nn.Module, weight: Tensor, kept: set[int]) -> Tensor:
    """Eq. 3: (1/n) * (sum_j (cos_j - 1))^2."""
    found = cosines_by_loop(layer, weight, kept)
    return sum((cos - 1 for cos in found), weight.new_zeros(())) ** 2 / max(len(found), 1)


def loop(layer: nn.Module, tr: float, kept: set[int] | None = None) -> tuple[Tensor, Tensor]:
    """Eq. 3 and its gradient by autograd, in float64, with the mask as a constant."""
    weight = layer.weight.detach().double().requires_grad_()
    value = ltr_by_loop(layer, weight, kept_by_loop(layer, tr) if kept is None else kept)
    if not value.requires_grad:
        return value, torch.zeros_like(weight)
    return value.detach(), torch.autograd.grad(value, weight)[0]


def penalty_of(layer: nn.Module, tr: float = 0.7, weight: float = 1.0, **options: Any) -> Penalty:
    return Penalty(layer, tr=tr, weight=weight, include="weight", **options)


def gradient(penalty: Penalty, weight: Tensor, step: int = 0) -> Tensor:
    """The gradient of the loss form."""
    return torch.autograd.grad(penalty(step), weight)[0]


def added(penalty: Penalty, weight: Tensor, step: int = 0) -> Tensor:
    """What `add_gradient` adds."""
    weight.grad = None
    penalty.add_gradient(step)
    assert weight.grad is not None
    result, weight.grad = weight.grad, None
    return result


def small_net(dtype: torch.dtype = torch.float32, *, channels_last: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ConvTranspose2d(4, 6, 3, groups=2),
        nn.Conv2d(6, 8, 3),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Flatten(),
        nn.Linear(8, 10),
    ).to(dtype)
    return model.to(memory_format=torch.channels_last) if channels_last else model


PLANNED = ["1.weight", "2.weight", "3.weight", "5.weight"]


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
    for result in (gradient(penalty, layer.weight), added(penalty, layer.weight)):
        torch.testing.assert_close(result.double(), slope, rtol=1e-4, atol=1e-5 * largest + 1e-6)
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
        model = small_net(dtype, channels_last=channels_last)
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
    model = small_net()
    penalty = Penalty(model, tr=0.6, weight=0.5)
    value = penalty.add_gradient(0, ["2.weight"])
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["2.weight"]
    expected, slope = loop(model[2], 0.6)
    torch.testing.assert_close(value.double(), 0.5 * expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(model[2].weight.grad.double(), 0.5 * slope, rtol=1e-4, atol=1e-7)


def test_frozen_weights_get_no_gradient_in_either_form() -> None:
    model = small_net()
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
    model = small_net(torch.float64)
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
    model = small_net()
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
    penalty = Penalty(small_net(), tr=0.7)
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


def test_tr_falls_linearly_and_stays() -> None:
    penalty = Penalty(small_net(), tr=(0.9, 0.7), steps=1000)
    by_step = {-5: 0.9, 0: 0.9, 1: 0.8998, 250: 0.85, 500: 0.8, 1000: 0.7, 1001: 0.7, 10**9: 0.7}
    assert {step: penalty.tr(step) for step in by_step} == pytest.approx(by_step, rel=1e-12)


def test_tr_may_be_constant_or_rise() -> None:
    constant = Penalty(small_net(), tr=0.8)
    assert {constant.tr(step) for step in (0, 1, 10**6)} == {0.8}
    assert Penalty(small_net(), tr=0.8, steps=10).tr(5) == 0.8
    rising = Penalty(small_net(), tr=[0.5, 0.9], steps=4)  # type: ignore[arg-type]
    assert [rising.tr(step) for step in range(6)] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 0.9])


def test_the_masks_follow_tr() -> None:
    layer = made("conv2d")
    penalty = Penalty(layer, tr=(0.9, 0.5), steps=4, weight=1.0, include="weight")
    expected = [float(loop(layer, tr)[0]) for tr in (0.9, 0.8, 0.7, 0.6, 0.5, 0.5)]
    assert [penalty(step).item() for step in range(6)] == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tr": 70}, "tr=70 must be in [0, 1): pass 0.7 for 70 %"),
        ({"tr": -0.1}, "tr=-0.1 must be in"),
        ({"tr": 1.0}, "tr=1.0 must be in"),
        ({"tr": 0.0}, "tr=0.0 must be in (0, 1)"),
        ({"tr": (0.9, 0)}, "tr=(0.9, 0) must be in (0, 1)"),
        ({"tr": math.nan}, "tr=nan must be in"),
        ({"tr": "0.7"}, "tr='0.7' must be a number"),
        ({"tr": None}, "tr=None must be a number"),
        ({"tr": True}, "tr=True must be a number"),
        ({"tr": (0.9, 70), "steps": 5}, "tr=70 must be in"),
        ({"tr": (0.9,)}, "tr=(0.9,) must be one number or a pair"),
        ({"tr": (0.9, 0.8, 0.7)}, "tr=(0.9, 0.8, 0.7) must be one number or a pair"),
        ({"tr": (0.9, 0.7)}, "steps=None must be the number of optimiser steps"),
        ({"steps": 0}, "steps=0 must be the number of optimiser steps"),
        ({"steps": -3}, "steps=-3 must be the number of optimiser steps"),
        ({"steps": 2.5}, "steps=2.5 must be the number of optimiser steps"),
        ({"steps": True}, "steps=True must be the number of optimiser steps"),
        ({"steps": "10"}, "steps='10' must be the number of optimiser steps"),
        ({"weight": -1}, "weight=-1 must be"),
        ({"weight": math.nan}, "weight=nan must be"),
        ({"weight": math.inf}, "weight=inf must be"),
        ({"weight": "0.1"}, "weight='0.1' must be"),
        ({"weight": None}, "weight=None must be"),
        ({"refresh": 0}, "refresh=0 must be a number of steps: a whole number"),
        ({"refresh": -1}, "refresh=-1 must be"),
        ({"refresh": 1.5}, "refresh=1.5 must be"),
        ({"refresh": True}, "refresh=True must be"),
        ({"include": "no_such_layer"}, "include='no_such_layer' matches no weight"),
    ],
    ids=str,
)
def test_bad_settings_get_one_clear_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError) as caught:
        Penalty(small_net(), **{"tr": 0.7, **options})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_no_weight_is_no_penalty() -> None:
    model = small_net()
    penalty = Penalty(model, tr=0.7, weight=0)
    value = penalty(0)
    value.backward()
    assert value.item() == 0.0
    assert not model[5].weight.grad.any()


def test_refresh_keeps_the_masks_that_many_steps() -> None:
    layer = made("conv2d")
    penalty = Penalty(layer, tr=(0.9, 0.5), steps=8, weight=1.0, refresh=3, include="weight")
    kept: set[int] = set()
    differs = False
    for step in range(8):
        tr = 0.9 - 0.05 * step
        fresh = kept_by_loop(layer, tr)
        if step % 3 == 0:
            kept = fresh
        differs |= kept != fresh
        value, slope = loop(layer, tr, kept)
        # Asking twice in a step, and in either form, is the same mask.
        for _ in range(2):
            torch.testing.assert_close(penalty(step).detach().double(), value, rtol=1e-6, atol=1e-12)
            torch.testing.assert_close(added(penalty, layer.weight, step), slope, rtol=1e-6, atol=1e-12)
        with torch.no_grad():
            layer.weight.add_(0.1 * torch.randn_like(layer.weight))
    assert differs, "the test must tell old masks from new ones"


def test_going_back_in_time_finds_the_masks_anew() -> None:
    layer = made("conv2d")
    penalty = penalty_of(layer, refresh=100)
    penalty(50)
    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight))
    torch.testing.assert_close(penalty(49).detach().double(), loop(layer, 0.7)[0], rtol=1e-6, atol=1e-12)


def train(model: nn.Module, penalty: Penalty, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in steps:
        optimizer.zero_grad()
        penalty(step).backward()
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad += 0.1 * torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("refresh", [1, 4])
def test_resuming_is_bit_equal(refresh: int) -> None:
    options: dict[str, Any] = {"tr": (0.9, 0.7), "steps": 12, "weight": 0.5, "refresh": refresh}
    model = small_net()
    penalty = Penalty(model, **options)
    train(model, penalty, range(6))
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "penalty": penalty.state_dict()}, buffer)
    train(model, penalty, range(6, 12))

    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    ends = {}
    for with_state in (True, False):
        resumed = small_net()
        resumed.load_state_dict(saved["model"])
        again = Penalty(resumed, **options)
        if with_state:
            again.load_state_dict(saved["penalty"])
        train(resumed, again, range(6, 12))
        ends[with_state] = resumed.state_dict()
    expected = model.state_dict()
    assert all(torch.equal(ends[True][key], expected[key]) for key in expected)
    same_without = all(torch.equal(ends[False][key], expected[key]) for key in expected)
    assert same_without == (refresh == 1), "with refresh=1 nothing is needed, otherwise the masks are"


def test_a_saved_state_is_a_copy() -> None:
    model = small_net()
    penalty = Penalty(model, tr=0.7, refresh=2)
    train(model, penalty, range(1))
    state = penalty.state_dict()
    before = copy.deepcopy(state)
    train(model, penalty, range(1, 6))
    assert state["found_at"] == before["found_at"] == 0
    assert list(state["kept"]) == PLANNED
    assert all(torch.equal(mask, before["kept"][name]) for name, mask in state["kept"].items())


def test_a_state_of_another_plan_is_refused() -> None:
    theirs = Penalty(small_net(), tr=0.7, refresh=2)
    theirs(0)
    ours = Penalty(small_net(), tr=0.7, refresh=2, exclude="5")
    with pytest.raises(PofError, match=r"5\.weight"):
        ours.load_state_dict(theirs.state_dict())


def test_what_is_logged() -> None:
    model = small_net(torch.float64)
    penalty = Penalty(model, tr=0.9, weight=0.3)
    assert penalty.layers() == {}
    assert math.isnan(penalty.mean_cosine)
    modules = dict(zip(PLANNED, (model[1], model[2], model[3], model[5]), strict=True))
    expected = {}
    for name, layer in modules.items():
        found = [float(cos) for cos in cosines_by_loop(layer, layer.weight.detach(), kept_by_loop(layer, 0.9))]
        mean = sum(found) / len(found)
        expected[name] = {"mean_cosine": mean, "term_per_row": float(loop(layer, 0.9)[0]) / len(found)}
        assert expected[name]["term_per_row"] == pytest.approx((mean - 1) ** 2)
    for call in (penalty, penalty.add_gradient):
        call(0)
        logged = penalty.layers()
        assert list(logged) == PLANNED
        for name, row in expected.items():
            assert logged[name] == pytest.approx(row, rel=1e-6)
        mean_of_means = sum(row["mean_cosine"] for row in expected.values()) / 4
        assert penalty.mean_cosine == pytest.approx(mean_of_means, rel=1e-6)


def test_what_is_logged_skips_rows_with_none_kept() -> None:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[3.0, -4.0], [5.0, 12.0]]))
    penalty = penalty_of(layer, 0.75)
    penalty(0)
    assert penalty.layers()["weight"] == pytest.approx(
        {"mean_cosine": 12 / 13, "term_per_row": (1 / 13) ** 2}, rel=1e-5
    )


def test_the_cosine_of_a_gaussian_row_is_the_measured_one() -> None:
    # Findings, part 1: the cosine between a Gaussian weight vector and its own mask.
    torch.manual_seed(0)
    layer = nn.Linear(4000, 25)
    nn.init.normal_(layer.weight)
    for tr, expected in ((0.5, 0.899), (0.7, 0.851), (0.8, 0.785), (0.9, 0.652)):
        penalty = penalty_of(layer, tr)
        penalty(0)
        assert penalty.mean_cosine == pytest.approx(expected, abs=0.003)
