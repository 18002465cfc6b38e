"""calibrate: the statistics of the present state, as plain sums give them, in every kind of norm."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.elastic.batch_statistics import estimate_statistics
from tests.small_models import AnyNormNet, bits, image_batches


def weights(model: nn.Module) -> dict[str, bytes]:
    return {name: value for name, value in bits(model).items() if "running" not in name and "num_batches" not in name}


def statistics_by_loop(maps: Iterable[Tensor]) -> tuple[list[float], list[float]]:
    """Channel by channel: the mean over batches of the batch's mean, and of its unbiased variance."""
    batches = [each.detach().double() for each in maps]
    means, variances = [], []
    for channel in range(batches[0].shape[1]):
        of_batches = []
        for batch in batches:
            values = batch[:, channel].flatten().tolist()
            mean = math.fsum(values) / len(values)
            of_batches.append((mean, math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)))
        means.append(math.fsum(mean for mean, _ in of_batches) / len(batches))
        variances.append(math.fsum(variance for _, variance in of_batches) / len(batches))
    return means, variances


def normalised(maps: Tensor, layer: Any) -> Tensor:
    """A BatchNorm that trains, by hand: with the batch's own mean and (biased) variance."""
    mean, variance = maps.mean((0, 2, 3), keepdim=True), maps.var((0, 2, 3), correction=0, keepdim=True)
    weight, bias = (each.view(1, -1, 1, 1) for each in (layer.weight, layer.bias))
    return (maps - mean) / (variance + layer.eps).sqrt() * weight + bias


def assert_statistics(layer: Any, maps: Iterable[Tensor], count: int) -> None:
    means, variances = statistics_by_loop(maps)
    assert layer.running_mean.tolist() == pytest.approx(means, rel=1e-4, abs=1e-5)
    assert layer.running_var.tolist() == pytest.approx(variances, rel=1e-4)
    assert layer.num_batches_tracked == count


# --- the numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("go", [None, lambda e: e.prune(0.7), lambda e: e.recover(0.3, 0.7)])
def test_statistics_are_those_of_a_plain_loop(go: Callable[[pof.Elastic], None] | None) -> None:
    """First layer: its input by hand. Second: through the first one as it normalises while it measures."""
    model = AnyNormNet()
    with torch.no_grad():  # an affine part that is not the identity
        model.bn1.weight.uniform_(0.5, 2.0)
        model.bn1.bias.uniform_(-1.0, 1.0)
    model(torch.randn(4, 1, 6, 6))  # and statistics of before, which must not shine through
    elastic = pof.Elastic(model)
    if go is not None:
        go(elastic)
    kept = weights(model)
    batches = image_batches()
    assert elastic.calibrate(batches, paired=False) == 3
    assert weights(model) == kept
    with torch.no_grad():
        first = [model.stem(x) for x in batches]
        second = [model.conv(torch.relu(normalised(maps, model.bn1))) for maps in first]
    assert_statistics(model.bn1, first, 3)
    assert_statistics(model.bn2, second, 3)


def test_it_is_torchs_own_cumulative_average() -> None:
    """The same as setting momentum=None and running the batches in training mode."""
    model, other = AnyNormNet(), AnyNormNet()
    other.load_state_dict(model.state_dict())
    batches = image_batches(4)
    elastic = pof.Elastic(model)
    elastic.calibrate(iter(batches), paired=False)
    other.eval()
    for layer in (other.bn1, other.bn2):
        layer.reset_running_stats()
        layer.momentum = None
        layer.train()
    with torch.no_grad():
        for x in batches:
            other(x)
    assert bits(model) == bits(other)


def test_batches_of_different_sizes_count_alike() -> None:
    model = AnyNormNet()
    batches = [torch.randn(2, 1, 6, 6), 5 + torch.randn(9, 1, 7, 8)]
    pof.Elastic(model).calibrate(batches, paired=False)
    with torch.no_grad():
        assert_statistics(model.bn1, [model.stem(x) for x in batches], 2)


def test_calibrating_again_starts_afresh() -> None:
    model = AnyNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    elastic.calibrate(image_batches(5), paired=False)
    batches = image_batches(2)
    elastic.calibrate(batches, paired=False)
    with torch.no_grad():
        assert_statistics(model.bn1, [model.stem(x) for x in batches], 2)


def test_it_helps_a_pruned_model() -> None:
    """In evaluation mode a pruned network with its own statistics is normalised again."""
    model = AnyNormNet()
    x = image_batches(1, 64)[0]
    elastic = pof.Elastic(model)
    elastic.calibrate([x], paired=False)
    elastic.prune(0.8)
    model.eval()

    def spread() -> Tensor:
        seen: list[Tensor] = []
        handle = model.bn2.register_forward_hook(lambda _, __, output: seen.append(output.detach()))
        model(x)
        handle.remove()
        return seen[0].var((0, 2, 3), correction=0)

    uncalibrated = spread()
    elastic.calibrate([x], paired=False)
    torch.testing.assert_close(spread(), torch.ones(6), rtol=0.02, atol=0.0)
    assert float((uncalibrated - 1).abs().max()) > 0.2


# --- other normalisation layers ----------------------------------------------------------------------------------


def test_a_model_without_norms_only_runs() -> None:
    model = AnyNormNet(lambda _: nn.Identity())
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    assert elastic.calibrate(image_batches(), paired=False) == 3
    elastic.restore()
    assert bits(model) == before


def test_norms_without_statistics_are_left_alone() -> None:
    model = AnyNormNet(lambda channels: nn.BatchNorm2d(channels, track_running_stats=False))
    model.bn1 = nn.GroupNorm(2, 4)  # type: ignore[assignment]
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    assert elastic.calibrate(image_batches(), paired=False) == 3
    elastic.restore()
    assert bits(model) == before
    assert model.bn2.training


@pytest.mark.parametrize("momentum", [None, 0.0, 0.1, 1.0])
def test_momentum_of_any_kind_gives_the_same(momentum: float | None) -> None:
    model = AnyNormNet(lambda channels: nn.BatchNorm2d(channels, momentum=momentum))
    elastic = pof.Elastic(model)
    batches = image_batches()
    elastic.calibrate(batches, paired=False)
    with torch.no_grad():
        assert_statistics(model.bn1, [model.stem(x) for x in batches], 3)
    assert model.bn1.momentum == momentum


def test_sync_batchnorm() -> None:
    """It is one process here; torch then runs it as a plain one."""
    model, other = AnyNormNet(), AnyNormNet()
    other.load_state_dict(model.state_dict())
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(model.bn1, nn.SyncBatchNorm)
    batches = image_batches()
    for each in (model, other):
        elastic = pof.Elastic(each)
        elastic.prune(0.5)
        elastic.calibrate(batches, paired=False)
    assert bits(model) == bits(other)


def test_instance_norm_that_tracks() -> None:
    """Its statistics are averages over samples of each sample's mean and unbiased variance."""
    model = AnyNormNet(lambda channels: nn.InstanceNorm2d(channels, track_running_stats=True))
    model(image_batches(1)[0])
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    batches = image_batches()
    elastic.calibrate(batches, paired=False)
    with torch.no_grad():
        maps = [model.stem(x) for x in batches]
    mean = torch.stack([each.mean((2, 3)).mean(0) for each in maps]).mean(0)
    variance = torch.stack([each.var((2, 3)).mean(0) for each in maps]).mean(0)
    torch.testing.assert_close(model.bn1.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.bn1.running_var, variance, rtol=1e-4, atol=1e-5)
    assert model.bn1.momentum == 0.1
    elastic.restore()
    assert bits(model) == before


def test_a_layer_that_is_used_twice_averages_over_its_uses() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.bn = nn.BatchNorm1d(4)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.bn(self.fc(self.bn(x)))
            return out

    model = Twice()
    x = torch.randn(20, 4)
    pof.Elastic(model).calibrate([x], paired=False)
    with torch.no_grad():
        once = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
        second = model.fc(once)
    torch.testing.assert_close(model.bn.running_mean, (x.mean(0) + second.mean(0)) / 2)
    torch.testing.assert_close(model.bn.running_var, (x.var(0) + second.var(0)) / 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = AnyNormNet().to(dtype)
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    elastic.calibrate([x.to(dtype) for x in image_batches()], paired=False)
    assert model.bn1.running_mean.dtype is dtype
    assert bits(model) != before
    elastic.restore()
    assert bits(model) == before


def test_the_function_behind_it_works_on_any_model() -> None:
    """Without an Elastic, for models that have nothing to prune."""
    model = nn.Sequential(nn.BatchNorm1d(3))
    x = torch.randn(10, 3)
    assert estimate_statistics(model, [x]) == 1
    torch.testing.assert_close(model[0].running_mean, x.mean(0))
