"""BatchNorm in a training pass: the outputs of calibrated statistics, with the gradients of training mode."""

import copy

import torch
from torch import nn

import pof
from pof.fitting.paired_norms import PairedNorms
from tests.convnets import convnet, inputs
from tests.small_models import bits


def test_the_dense_network_computes_what_its_teacher_does() -> None:
    model = convnet().double()
    teacher = copy.deepcopy(model)
    norms, x = PairedNorms(model, teacher), inputs(32, 3).double()
    before = bits(model)
    with norms.watching():
        wanted = teacher(x)
    with norms.paired():
        # Moments of a batch are taken in float32.
        torch.testing.assert_close(model(x), wanted, rtol=1e-3, atol=1e-5)
    assert bits(model) == before
    assert not model[1].training
    assert model[1].momentum == 0.1
    assert isinstance(model[1].weight, nn.Parameter)


def test_a_pruned_layer_computes_what_calibration_gives() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6)).double()
    model(torch.randn(64, 8, dtype=torch.float64) + 1)
    teacher = copy.deepcopy(model.eval())
    norms, x = PairedNorms(model, teacher), torch.randn(512, 8, dtype=torch.float64)
    with norms.watching():
        teacher(x)
    elastic = pof.Elastic(model)
    elastic.prune(0.6)
    with norms.paired():
        found = model(x)
    plain = model(x)
    elastic.calibrate([x])
    with torch.no_grad():
        # `calibrate` has the unbiased variance, as torch's running statistics do: 1 / (n - 1) instead of 1 / n.
        torch.testing.assert_close(model(x), found, rtol=0.01, atol=0.003)
        assert float((plain - found).abs().max()) > 0.1


def test_gradients_are_those_of_finite_differences() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    teacher = copy.deepcopy(model).eval()
    x = torch.randn(16, 4, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight.mul_(1.01)
        for module in (model, teacher):
            module[1].running_mean.copy_(teacher(x).mean(0) * 0.1)
    model.eval()
    norms = PairedNorms(model, teacher)
    with norms.watching(), torch.no_grad():
        teacher(x)
    with norms.paired():
        model(x).pow(3).mean().backward()
    assert model[1].weight.grad is not None
    gain = model[1].weight.grad.clone()
    for channel in range(3):
        values = []
        for step in (1e-6, -1e-6):
            with torch.no_grad(), norms.paired():
                model[1].weight[channel] += step
                values.append(float(model(x).pow(3).mean()))
                model[1].weight[channel] -= step
        assert abs((values[0] - values[1]) / 2e-6 - float(gain[channel])) < 1e-5
    # Training mode makes the outputs independent of a weight's scale, so its gradient has no part along the weight.
    along = (model[0].weight.grad * model[0].weight.detach()).sum(1).abs() / model[0].weight.grad.norm()
    assert float(along.max()) < 0.05


def test_a_layer_that_is_used_twice_is_paired_call_by_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.bn(self.fc(self.bn(self.fc(x))) + 1)
            return found

    model = Twice().double().eval()
    teacher = copy.deepcopy(model)
    norms, x = PairedNorms(model, teacher), torch.randn(16, 4, dtype=torch.float64)
    with norms.watching():
        wanted = teacher(x)
    with norms.paired():
        torch.testing.assert_close(model(x), wanted)
    assert model.bn.weight is None
