"""Rows on a common scale compute the same."""

import copy

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.fitting.layer_inputs import refittable_layers
from pof.fitting.row_balance import Balance, balancing_factors, normalised_layers
from tests.convnets import convnet, inputs


@pytest.mark.parametrize("spared", [0.0, 0.25])
def test_balanced_rows_compute_the_same(spared: float) -> None:
    model = convnet(depthwise=True).double()
    x = inputs(16).double()
    layers, _ = refittable_layers(model, pof.plan(model))
    pairs = normalised_layers(model, layers, x)
    assert [pair.layer.name for pair in pairs] == ["3.weight", "6.weight"]
    with torch.no_grad():
        model[3].weight[::3] *= 1000.0
        before = model(x)
        for name, factors in balancing_factors(pairs, [model[11].weight], Balance(1.0, spared)).items():
            next(pair for pair in pairs if pair.layer.name == name).scale_rows(factors)
        torch.testing.assert_close(model(x), before)
    size = float(model[11].weight.detach().square().mean().sqrt())
    rows = model[3].weight.detach().flatten(1).square().mean(1).sqrt()
    torch.testing.assert_close(
        rows, torch.full_like(rows, size * (model[11].weight.numel() / model[3].weight.numel()) ** spared)
    )


def test_a_channel_of_almost_no_variance() -> None:
    """Its eps cannot be scaled, so the weight of the norm makes up for it."""
    model = convnet().double()
    x = inputs(8).double()
    layers, _ = refittable_layers(model, pof.plan(model))
    with torch.no_grad():
        model[4].running_var[0] = 0.0
        before = model(x)
        pair = normalised_layers(model, layers, x)[0]
        pair.scale_rows(torch.full((16,), 0.01, dtype=torch.float64))
        torch.testing.assert_close(model(x), before)
    assert float(model[4].running_var.min()) >= 0


def test_only_what_goes_straight_into_one_norm() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.shared, self.bn = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
            self.plain = nn.Conv2d(4, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.bn(self.shared(self.stem(x)))
            found: Tensor = self.plain(self.bn(self.shared(x)) + 1.0)
            return found

    model = Twice().eval()
    layers, _ = refittable_layers(model, pof.plan(model))
    assert normalised_layers(copy.deepcopy(model), layers, inputs(2)) == []
    assert normalised_layers(model, layers, inputs(2)) == []
