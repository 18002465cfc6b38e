"""Statistics of channels that pruning has silenced: finite, and float32 near to float64."""

import copy

import pytest
import torch
from torch import nn

import pof


def depthwise_net() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        layers += [nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


@pytest.mark.parametrize("sparsity", [0.8, 0.9, 0.95])
def test_float32_is_near_float64(sparsity: float) -> None:
    model = depthwise_net()
    images = torch.randn(64, 3, 12, 12)
    model.train()
    model(images)
    model.eval()
    exact = copy.deepcopy(model).double()
    outputs = {}
    for name, network, inputs in (("float32", model, images), ("float64", exact, images.double())):
        elastic = pof.Elastic(network)
        elastic.prune(sparsity)
        elastic.calibrate(inputs.split(16))
        with torch.no_grad():
            outputs[name] = network(inputs).double()
    assert outputs["float32"].isfinite().all()
    off = (outputs["float32"] - outputs["float64"]).abs().max() / outputs["float64"].abs().max()
    assert float(off) < 1e-3


def test_a_silent_channel_keeps_a_share_of_its_variance() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3, bias=False), nn.BatchNorm1d(3)).eval()
    with torch.no_grad():
        model[1].weight[1].fill_(1e-6)
        model[2].running_var.copy_(torch.tensor([1.0, 4.0, 1.0]))
    elastic = pof.Elastic(model, include=("1",))
    elastic.prune(0.3)
    assert bool((model[1].weight[1] == 0).all())
    elastic.calibrate([torch.randn(32, 4)])
    assert float(model[2].running_var[1]) == 4.0 * 2.0**-12
    assert float(model[2].running_var[0]) > 0.001
