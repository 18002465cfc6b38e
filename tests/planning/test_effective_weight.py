"""Layers that compute with other weights than they store are left out; those that only look different are not."""

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
        Picky(5, 4),
        pof.SphericalConv2d(4, 6, 3),
        pof.SphericalLinear(5, 4),
        nn.Conv1d(3, 4, 3),
        nn.ConvTranspose2d(4, 6, 3, groups=2),
    ],
)
def test_others_take_part(layer: nn.Module) -> None:
    assert computes_with_its_weight(layer)


def test_looking_leaves_no_trace() -> None:
    class Counting(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            return super().forward(x) + 0 * torch.rand(())

    layer, state = Counting(), torch.random.get_rng_state()
    assert computes_with_its_weight(layer)
    assert float(layer.calls) == 0.0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert layer.weight.grad is None
