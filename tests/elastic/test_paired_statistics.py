"""Statistics estimated in pairs: the dense state stays exact, noise cancels, silent channels stay harmless."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.elastic.paired_statistics import moved, paired_statistics
from tests.small_models import bits


def convnet(depthwise: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    groups = 16 if depthwise else 1
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, groups=groups, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 8, 1), nn.BatchNorm2d(8), nn.Flatten(), nn.LazyLinear(5),
    )  # fmt: skip
    model(images(0)[0])  # statistics that are not those of any batches below: one update from the start
    return model.eval()


def images(seed: int, count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(32, 3, 10, 10, generator=generator) for _ in range(count)]


def test_the_dense_state_keeps_its_statistics_bit_for_bit() -> None:
    model = convnet()
    before = bits(model)
    elastic = pof.Elastic(model)
    assert elastic.calibrate(images(1)) == 3
    assert bits(model) == before
    elastic.prune(0.7)
    elastic.calibrate(images(1))
    assert bits(model)["4.running_var"] != before["4.running_var"]
    elastic.restore()
    assert bits(model) == before


def test_one_layer_by_a_plain_loop() -> None:
    kept, dense, state = (
        (torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.0, 4.0, 0.25])),
        (torch.tensor([0.6, -0.8, 2.0]), torch.tensor([2.0, 4.5, 0.30])),
        (torch.tensor([0.4, -0.7, 1.5]), torch.tensor([1.0, 3.0, 0.10])),
    )
    eps = 1e-5
    shifts = logs = 0.0
    for i in range(3):
        shifts += (float(state[0][i]) - float(dense[0][i])) ** 2 / (float(dense[1][i]) + eps)
        ratio = torch.tensor((float(state[1][i]) + eps) / (float(dense[1][i]) + eps), dtype=torch.float64)
        logs += float(ratio.log()) ** 2
    change = (shifts / 3) ** 0.5 + (logs / 3) ** 0.5 / 2
    share = change / (1 + change)
    mean, variance = moved(kept, dense, state, eps)
    for i in range(3):
        r = ((float(kept[1][i]) + eps) / (float(dense[1][i]) + eps)) ** 0.5
        by_difference = float(kept[0][i]) + (float(state[0][i]) - float(dense[0][i])) * r
        assert float(mean[i]) == pytest.approx((1 - share) * by_difference + share * float(state[0][i]), rel=1e-6)
        spread = (float(state[1][i]) + eps) * r * r
        expected = (1 - share) * spread + share * (float(state[1][i]) + eps) - eps
        assert float(variance[i]) == pytest.approx(expected, rel=1e-5)


def test_nothing_changed_gives_the_kept_statistics() -> None:
    layers = [nn.BatchNorm1d(4), nn.BatchNorm1d(4)]
    kept = [torch.randn(4), torch.rand(4) + 0.1, torch.tensor(7)] * 2
    dense = [torch.randn(4), torch.rand(4) + 0.1, torch.tensor(3)] * 2
    found = paired_statistics(layers, kept, dense, dense)
    for mine, theirs in zip(found, kept, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_the_choice_of_batches_matters_less_than_in_plain_estimation() -> None:
    """Few images: the noise of their statistics is in both estimates, and cancels."""
    model = convnet()
    means: dict[bool, list[Tensor]] = {True: [], False: []}
    for paired, found in means.items():
        for seed in range(6):
            elastic = pof.Elastic(model)
            with elastic.at(0.3):
                elastic.calibrate([images(seed + 5, 1)[0][:4]], paired=paired)
                found.append(model[4].running_mean.clone())
            elastic.restore()
    spread = {paired: float(torch.stack(found).std(0).mean()) for paired, found in means.items()}
    assert spread[True] < 0.6 * spread[False]


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("sparsity", [0.7, 0.9, 0.95])
def test_pruned_depthwise_networks_are_near_to_float64(sparsity: float, paired: bool) -> None:
    """Of a channel that pruning has silenced no variance is left, and 1 / sqrt(eps) magnifies rounding errors."""
    model = convnet(depthwise=True)
    elastic = pof.Elastic(model)
    elastic.prune(sparsity)
    elastic.calibrate(images(1), paired=paired)
    assert all(float(model[i].running_var.min()) > 1e-4 for i in (1, 4, 7))
    x = images(3)[0]
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        assert float((model(x).double() - exact).abs().max() / exact.abs().max()) < 1e-5


def test_batches_that_can_be_read_only_once() -> None:
    """Both networks see the same batches, even those of a generator."""
    model = convnet()
    elastic = pof.Elastic(model)
    elastic.prune(0.6)
    assert elastic.calibrate(iter(images(1))) == 3
    once = bits(model)
    elastic.refresh()
    other = convnet()
    elastic = pof.Elastic(other)
    elastic.prune(0.6)
    elastic.calibrate(images(1))
    assert bits(other) == once


def test_a_file_keeps_paired_statistics(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = convnet()
    pof.save(model, tmp_path / "m.pof", calibrate=images(1), states=[0.6])
    loaded = convnet()
    pof.load(tmp_path / "m.pof", into=loaded, sparsity=0.6)
    elastic = pof.Elastic(model)
    elastic.prune(0.6)
    elastic.calibrate(images(1))
    spread = (model[4].running_var + 1e-5).sqrt()
    assert bool(((loaded[4].running_mean - model[4].running_mean).abs() <= 0.02 * spread).all())
    torch.testing.assert_close(loaded[4].running_var, model[4].running_var, rtol=0.03, atol=1e-4)


def test_a_channel_that_only_the_dense_network_silences() -> None:
    """Its variance in the dense network gives no ratio: the plain estimate is all there is."""
    kept, dense = (torch.zeros(2), torch.ones(2)), (torch.zeros(2), torch.tensor([0.0, 1.0]))
    state = (torch.tensor([0.5, 0.0]), torch.tensor([0.6, 1.0]))
    mean, variance = moved(kept, dense, state, 1e-5)
    assert float(mean[0]) == pytest.approx(0.5)
    assert float(variance[0]) == pytest.approx(0.6)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e-3])
def test_statistics_that_came_broken_are_named(value: float) -> None:
    model = convnet()
    model[4].running_var[3] = value
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with pytest.raises(pof.PofError, match="that the model came with hold NaN, inf or negative"):
        elastic.calibrate(images(1))
    elastic.calibrate(images(1), paired=False)
    assert bool(torch.isfinite(model[4].running_var).all())


def test_calibrating_weights_that_came_pruned_says_that_nothing_changes() -> None:
    model = convnet()
    pof.Elastic(model).prune(0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        elastic = pof.Elastic(model)
    before = bits(model)
    with pytest.warns(UserWarning, match=r"calibrate\(batches, paired=False\) replaces them"):
        elastic.calibrate(images(1))
    assert bits(model) == before
    elastic.calibrate(images(1), paired=False)
    assert bits(model) != before


def test_a_layer_that_no_batch_reaches_keeps_its_statistics() -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn, self.unused = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)
            self.unused.running_var.fill_(7.0)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.bn(self.fc(x))
            return found

    model = Head().eval()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    for paired in (True, False):
        elastic.calibrate([torch.randn(16, 3)], paired=paired)
        assert float(model.unused.running_var.min()) == 7.0


def test_statistics_that_are_used_but_not_tracked() -> None:
    model = convnet()
    for layer in (1, 4, 7):
        model[layer].track_running_stats = False
    elastic = pof.Elastic(model)
    elastic.prune(0.9)
    before = bits(model)["4.running_var"]
    elastic.calibrate(images(1))
    assert bits(model)["4.running_var"] != before
    assert not model[4].track_running_stats


def test_frozen_norms_are_named() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(8))
            self.register_buffer("running_var", torch.ones(8))

        def forward(self, x: Tensor) -> Tensor:
            return (x - self.running_mean) / self.running_var.sqrt()

    model = nn.Sequential(nn.Linear(3, 8), Frozen(), nn.Linear(8, 8), nn.BatchNorm1d(8)).eval()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with pytest.warns(UserWarning, match="^1 keep statistics but are no BatchNorm of torch's"):
        elastic.calibrate([torch.randn(16, 3)])
