"""Layers that compute with other weights than they store are left out; those that only look different are not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.planning.effective_weight import computes_with_its_weight


class StandardisedConv(nn.Conv2d):
    """As timm's StdConv2d: each filter has mean zero and variance one when it is used."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.flatten(1)
        weight = (weight - weight.mean(1, keepdim=True)) / (weight.var(1, keepdim=True) + 1e-6).sqrt()
        return F.conv2d(x, weight.view_as(self.weight), self.bias, self.stride, self.padding)


class CosineLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.weight, dim=1), self.bias)


class SamePadding(nn.Conv2d):
    """As timm's Conv2dSame: another padding, the same weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


class Scaled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3.0 * super().forward(x)


class Picky(nn.Linear):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward(x * mask)


def linear(effective: Callable[[Tensor], Tensor]) -> nn.Linear:
    """A linear layer that computes with a function of its weight."""

    class Own(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, effective(self.weight), self.bias)

    return Own(8, 6)


def conv(effective: Callable[[Tensor], Tensor], **how: Any) -> nn.Conv2d:
    """A convolution that computes with a function of its weight, and overrides less than the whole forward."""

    class Own(nn.Conv2d):
        def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return super()._conv_forward(x, effective(weight), bias)

    return Own(4, 4, 3, **how)


class ByProducts(nn.Linear):
    """No operation that multiplies matrices."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None] * (self.weight - self.weight.mean())).sum(-1)


class PlainProducts(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return (x[:, None] * self.weight).sum(-1)


class OwnNorm(nn.Linear):
    """It normalises its input, not its weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.layer_norm(x, (8,)))


class TwoParts(nn.Linear):
    """A part beside the weight, which has a factor of the same size."""

    def __init__(self) -> None:
        super().__init__(8, 6)
        self.other = nn.Parameter(torch.randn(6, 8))
        self.scale = nn.Parameter(torch.full((6,), 1e-3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight * self.scale.sqrt()[:, None]) + F.linear(x, self.other)


class LearntShift(nn.Linear):
    """At first it computes with its weight; the shift is learnt."""

    def __init__(self) -> None:
        super().__init__(8, 6)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.weight + self.shift).t()


class Switched(nn.Linear):
    def __init__(self, centred: bool) -> None:
        super().__init__(8, 6)
        self.centred = centred

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,oi->bo", x, self.weight - self.centred * self.weight.mean(1, keepdim=True))


class CentralDifference(nn.Conv2d):
    """A convolution with the weight, and one with its sums: the middle of a kernel is not what is stored."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - 0.7 * F.conv2d(x, self.weight.sum((2, 3), keepdim=True), padding=self.padding)


class InHalves(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        one, other = self.weight.chunk(2)
        return torch.cat([x @ one.t(), x @ other.t()], 1)


class ThereAndBack(nn.Linear):
    """Its second product is of what the first one gives, which is no weight."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ torch.ones(64, 64)


class CentredAttention(nn.MultiheadAttention):
    def forward(self, *inputs: Tensor, **settings: Any) -> Any:
        return F.linear(inputs[0], self.in_proj_weight - self.in_proj_weight.mean()), None


class TransposedCentred(nn.ConvTranspose2d):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return F.conv_transpose2d(x, self.weight - self.weight.mean())


@pytest.mark.parametrize(
    "layer",
    [
        linear(lambda weight: weight - weight.mean()),
        linear(lambda weight: weight - weight.mean(1, keepdim=True)),
        linear(lambda weight: weight - weight.mean(0)),
        linear(lambda weight: 2 * weight + 0.1),
        linear(lambda weight: torch.ones(6, 6) @ weight + weight),
        conv(lambda weight: weight - weight.mean((2, 3), keepdim=True), stride=2),
        conv(lambda weight: weight - weight.mean(1, keepdim=True), padding=1),
        conv(lambda weight: weight - weight.mean(0), groups=4, dilation=2),
        ByProducts(8, 6),
        LearntShift(),
        Switched(True),
        TransposedCentred(4, 6, 3),
        CentralDifference(16, 16, 3, padding=1),
        CentredAttention(8, 2),
    ],
)
def test_linear_functions_of_a_weight_are_caught(layer: nn.Module) -> None:
    assert not computes_with_its_weight(layer)
    assert not computes_with_its_weight(layer), "what is remembered is the same"


@pytest.mark.parametrize("layer", [StandardisedConv(4, 6, 3), StandardisedConv(4, 6, 3, groups=2), CosineLinear(5, 4)])
def test_zeros_that_would_not_stay_zero_are_left_out(layer: nn.Module) -> None:
    assert not computes_with_its_weight(layer)
    model = nn.Sequential(nn.Linear(4, 4), layer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.warns(UserWarning, match=r"1.weight is not pruned: \w+ computes with other weights than it stores"):
        plan = pof.plan(model)
    assert [entry.name for entry in plan] == ["0.weight"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    "layer",
    [
        SamePadding(3, 4, 3),
        Scaled(5, 4),
        PlainProducts(8, 6),
        OwnNorm(8, 6),
        TwoParts(),
        Switched(False),
        linear(lambda weight: 0.3 * weight),
        linear(lambda weight: weight).bfloat16(),
        conv(lambda weight: weight, stride=2, padding=1, groups=2),
        pof.SphericalConv2d(4, 6, 3),
        pof.SphericalLinear(5, 4),
        InHalves(32, 32),
        ThereAndBack(64, 64),
        nn.Conv1d(3, 4, 3),
        nn.MultiheadAttention(8, 2),
        nn.ConvTranspose2d(4, 6, 3, groups=2),
    ],
)
def test_others_take_part(layer: nn.Module) -> None:
    assert computes_with_its_weight(layer)


class Transformed(nn.Linear):
    """What it computes with depends on a function that it is given."""

    def __init__(self, transform: Callable[[Tensor], Tensor] | nn.Module | None) -> None:
        super().__init__(8, 8)
        self.transform = transform

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight if self.transform is None else self.transform(self.weight), self.bias)


@pytest.mark.parametrize("transform", [lambda weight: weight - weight.mean(), nn.LayerNorm(8)])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_layers_of_one_class_that_differ(transform: Any, order: tuple[int, int]) -> None:
    layers = (Transformed(None), Transformed(transform))
    found = [computes_with_its_weight(layers[i]) for i in order]
    assert found == [(True, False)[i] for i in order]


def test_a_layer_that_cannot_be_tried_is_pruned_with_a_warning() -> None:
    replaced = nn.Linear(4, 4)
    replaced.forward = lambda x: F.linear(x, replaced.weight - 1.0)  # type: ignore[method-assign]
    for layer in (Picky(4, 4), replaced):
        assert computes_with_its_weight(layer) is None
        model = nn.Sequential(nn.Linear(4, 4), layer)
        with pytest.warns(UserWarning, match=r"1.weight: pof cannot see how this weight is used"):
            assert [entry.name for entry in pof.plan(model)] == ["0.weight", "1.weight"]
        pof.plan(model, include="*")  # asked for, so nothing is said


def test_looking_leaves_no_trace() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return super().forward(x) + 0 * torch.rand(())

    layer, state, seen = Counting(), torch.random.get_rng_state(), []
    layer.register_forward_hook(lambda *_: seen.append(1))
    assert computes_with_its_weight(layer)
    assert float(layer.calls) == 0.0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert layer.weight.grad is None
    layer(torch.ones(1, 4))
    assert seen == [1], "hooks see the calls of the user"
