"""calibrate: the statistics of the present state, as plain sums give them; nothing else of the model moves."""

import math
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pof
from pof.elastic.batch_statistics import estimate_statistics


class Net(nn.Module):
    """`stem` is the first convolution, so it is left out of the plan; dropout shows whether it was off."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.bn1 = norm(4)
        self.drop = nn.Dropout(0.5)
        self.conv = nn.Conv2d(4, 6, 3)
        self.bn2 = norm(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = self.drop(torch.relu(self.bn1(self.stem(x))))
        logits: Tensor = self.fc(self.bn2(self.conv(x)).mean((2, 3))) * scale
        return logits


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def images(count: int = 3, batch: int = 5) -> list[Tensor]:
    return [2.0 + torch.randn(batch, 1, 6, 6) * (1 + number) for number in range(count)]


def bits(model: nn.Module) -> dict[str, bytes]:
    return {
        name: value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }


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
    model = Net()
    with torch.no_grad():  # an affine part that is not the identity
        model.bn1.weight.uniform_(0.5, 2.0)
        model.bn1.bias.uniform_(-1.0, 1.0)
    model(torch.randn(4, 1, 6, 6))  # and statistics of before, which must not shine through
    elastic = pof.Elastic(model)
    if go is not None:
        go(elastic)
    kept = weights(model)
    batches = images()
    assert elastic.calibrate(batches) == 3
    assert weights(model) == kept
    with torch.no_grad():
        first = [model.stem(x) for x in batches]
        second = [model.conv(torch.relu(normalised(maps, model.bn1))) for maps in first]
    assert_statistics(model.bn1, first, 3)
    assert_statistics(model.bn2, second, 3)


def test_it_is_torchs_own_cumulative_average() -> None:
    """The same as setting momentum=None and running the batches in training mode."""
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())
    batches = images(4)
    elastic = pof.Elastic(model)
    elastic.calibrate(iter(batches))
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
    model = Net()
    batches = [torch.randn(2, 1, 6, 6), 5 + torch.randn(9, 1, 7, 8)]
    pof.Elastic(model).calibrate(batches)
    with torch.no_grad():
        assert_statistics(model.bn1, [model.stem(x) for x in batches], 2)


def test_calibrating_again_starts_afresh() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    elastic.calibrate(images(5))
    batches = images(2)
    elastic.calibrate(batches)
    with torch.no_grad():
        assert_statistics(model.bn1, [model.stem(x) for x in batches], 2)


def test_it_helps_a_pruned_model() -> None:
    """In evaluation mode a pruned network with its own statistics is normalised again."""
    model = Net()
    x = images(1, 64)[0]
    elastic = pof.Elastic(model)
    elastic.calibrate([x])
    elastic.prune(0.8)
    model.eval()

    def spread() -> Tensor:
        seen: list[Tensor] = []
        handle = model.bn2.register_forward_hook(lambda _, __, output: seen.append(output.detach()))
        model(x)
        handle.remove()
        return seen[0].var((0, 2, 3), correction=0)

    uncalibrated = spread()
    elastic.calibrate([x])
    torch.testing.assert_close(spread(), torch.ones(6), rtol=0.02, atol=0.0)
    assert float((uncalibrated - 1).abs().max()) > 0.2


# --- left as found -----------------------------------------------------------------------------------------------


def test_modes_and_momentum_are_left_as_found() -> None:
    model = Net()
    model.bn1.momentum, model.bn2.momentum = 0.3, None
    model.train()
    model.bn2.eval()
    model.conv.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    pof.Elastic(model).calibrate(images())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert (model.bn1.momentum, model.bn2.momentum) == (0.3, None)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_what_runs_is_in_evaluation_mode_but_for_the_norms(training: bool) -> None:
    model = Net().train(training)
    seen: list[dict[str, bool]] = []
    grads: list[bool] = []

    def look(module: nn.Module, inputs: Any) -> None:
        seen.append({name: each.training for name, each in model.named_modules()})
        grads.append(torch.is_grad_enabled())

    model.register_forward_pre_hook(look)
    pof.Elastic(model).calibrate(images(2))
    on = {"bn1", "bn2"}
    assert seen == [{name: name in on for name, _ in model.named_modules()}] * 2
    assert grads == [False, False]


def test_dropout_is_off_so_it_is_repeatable() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    batches = images()
    results = set()
    for seed in range(3):
        torch.manual_seed(seed)
        elastic.calibrate(batches)
        results.add(bits(model)["bn2.running_mean"])
    assert len(results) == 1
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    elastic.calibrate(batches)
    assert torch.rand(1) == expected, "no random number was used"


def test_inputs_are_left_alone() -> None:
    batches = images()
    copies = [x.clone() for x in batches]
    pof.Elastic(Net()).calibrate(batches)
    assert all(torch.equal(a, b) for a, b in zip(batches, copies, strict=True))


# --- they belong to the state ------------------------------------------------------------------------------------


def test_statistics_belong_to_their_state() -> None:
    model = Net()
    model(images(1)[0])
    dense = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    assert bits(model)["bn1.running_mean"] == dense["bn1.running_mean"]
    elastic.calibrate(images())
    at_07 = bits(model)
    assert at_07["bn2.running_var"] != dense["bn2.running_var"]

    elastic.prune(0.5)
    uncalibrated = bits(model)
    assert all(uncalibrated[name] == dense[name] for name in dense if name.startswith("bn")), "its own: the dense ones"
    elastic.recover(0.3, 0.7)
    assert bits(model)["bn2.running_var"] == dense["bn2.running_var"], "a band at 0.7 is not pruned at 0.7"
    elastic.calibrate(images(2))
    recovered = bits(model)

    elastic.prune(0.7)
    assert bits(model) == at_07
    with elastic.at(0.7, recover_from=0.3):
        assert bits(model) == recovered
    assert bits(model) == at_07
    elastic.restore()
    assert bits(model) == dense
    elastic.recover(0.3, 0.7)
    assert bits(model) == recovered


def test_calibrating_the_dense_state_lasts_until_restore() -> None:
    """restore() is the way back to how the model came; refresh() makes the new statistics the model's own."""
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.calibrate(images())
    calibrated = bits(model)
    assert calibrated["bn1.running_mean"] != before["bn1.running_mean"]
    elastic.prune(0.5)
    assert bits(model)["bn1.running_mean"] == before["bn1.running_mean"], "a state without its own has those of before"
    elastic.prune(0.0)
    assert bits(model) == calibrated
    elastic.restore()
    assert bits(model) == before
    elastic.prune(0.5)
    elastic.prune(0.0)
    assert bits(model) == before, "and they are forgotten"
    elastic.calibrate(images())
    elastic.refresh()
    calibrated = bits(model)
    elastic.prune(0.5)
    elastic.restore()
    assert bits(model) == calibrated


def test_refresh_forgets_statistics_of_states() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    elastic.calibrate(images())
    elastic.restore()
    elastic.refresh()
    dense = bits(model)
    elastic.prune(0.7)
    assert bits(model)["bn1.running_mean"] == dense["bn1.running_mean"]


def test_statistics_trained_in_a_state_are_that_states_too() -> None:
    model = Net()
    dense = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    model.train()(images(1)[0])
    trained = bits(model)
    elastic.prune(0.5)
    elastic.prune(0.7)
    assert bits(model) == trained
    elastic.restore()
    assert bits(model) == dense


# --- batches of every kind ---------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["image", "label"])


def generator(batches: list[Tensor]) -> Iterator[Tensor]:
    yield from batches


KINDS: dict[str, Callable[[list[Tensor]], Iterable[Any]]] = {
    "tensors": lambda batches: batches,
    "generator": generator,
    "tuples": lambda batches: [(x, torch.zeros(len(x))) for x in batches],
    "lists": lambda batches: [[x, torch.zeros(len(x))] for x in batches],
    "tuples of one": lambda batches: [(x,) for x in batches],
    "named tuples": lambda batches: [Pair(x, 0) for x in batches],
    "dicts": lambda batches: [{"x": x} for x in batches],
    "dicts with more": lambda batches: [{"x": x, "scale": 2.0} for x in batches],
    "ordered dicts": lambda batches: [OrderedDict(x=x) for x in batches],
    "mappings, as tokenizers give": lambda batches: [UserDict(x=x) for x in batches],
    "loader": lambda batches: DataLoader(TensorDataset(torch.cat(batches), torch.zeros(15)), batch_size=5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_batches_may_be(kind: str) -> None:
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())
    batches = images()
    assert pof.Elastic(model).calibrate(KINDS[kind](batches)) == 3
    pof.Elastic(other).calibrate(batches)
    assert bits(model) == bits(other)


@pytest.mark.parametrize("empty", [[], (), iter([]), (x for x in [])])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda _: nn.Identity()])
def test_no_batches_is_an_error(empty: Iterable[Tensor], norm: Callable[[int], nn.Module]) -> None:
    model = Net(norm)
    before = bits(model)
    elastic = pof.Elastic(model)
    with pytest.raises(pof.PofError, match="batches is empty"):
        elastic.calibrate(empty)
    assert bits(model) == before


def raising(batches: list[Tensor], error: BaseException) -> Iterator[Tensor]:
    yield from batches
    raise error


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt("mine")])
@pytest.mark.parametrize("state", ["dense", "pruned", "pruned and calibrated"])
def test_an_error_between_batches_leaves_everything_as_it_was(error: BaseException, state: str) -> None:
    model = Net()
    model(images(1)[0])
    model.bn1.eval()
    elastic = pof.Elastic(model)
    if state != "dense":
        elastic.prune(0.5)
    if state == "pruned and calibrated":
        elastic.calibrate(images())
    before, modes = bits(model), {name: module.training for name, module in model.named_modules()}
    with pytest.raises(type(error), match="mine"):
        elastic.calibrate(raising(images(2), error))
    assert bits(model) == before
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert (model.bn1.momentum, model.bn2.momentum) == (0.1, 0.1)


@pytest.mark.parametrize("bad", [torch.zeros(2, 3, 6, 6), torch.zeros(2, 1, 2, 2), "text", None, {"z": 1}, ()])
def test_a_bad_batch_in_the_middle_leaves_everything_as_it_was(bad: Any) -> None:
    model = Net()
    model(images(1)[0])
    before, modes = bits(model), {name: module.training for name, module in model.named_modules()}
    elastic = pof.Elastic(model)
    good = images()
    with pytest.raises((RuntimeError, TypeError, AttributeError, IndexError, ValueError)):
        elastic.calibrate([good[0], bad, good[1]])
    assert bits(model) == before
    assert {name: module.training for name, module in model.named_modules()} == modes
    elastic.prune(0.5)
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite(value: float) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    batches = images()
    batches[1][2, 0, 3, 3] = value
    with pytest.raises(pof.PofError, match="NaN or inf"):
        elastic.calibrate(batches)
    assert bits(model) == before


def test_changed_weights_are_noticed_before_anything_runs() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.fc.weight.add_(1.0)
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError):
        elastic.calibrate(raising([], AssertionError("must not be read")))
    assert bits(model) == before


# --- other normalisation layers ----------------------------------------------------------------------------------


def test_a_model_without_norms_only_runs() -> None:
    model = Net(lambda _: nn.Identity())
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    assert elastic.calibrate(images()) == 3
    elastic.restore()
    assert bits(model) == before


def test_norms_without_statistics_are_left_alone() -> None:
    model = Net(lambda channels: nn.BatchNorm2d(channels, track_running_stats=False))
    model.bn1 = nn.GroupNorm(2, 4)  # type: ignore[assignment]
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    assert elastic.calibrate(images()) == 3
    elastic.restore()
    assert bits(model) == before
    assert model.bn2.training


@pytest.mark.parametrize("momentum", [None, 0.0, 0.1, 1.0])
def test_momentum_of_any_kind_gives_the_same(momentum: float | None) -> None:
    model = Net(lambda channels: nn.BatchNorm2d(channels, momentum=momentum))
    elastic = pof.Elastic(model)
    batches = images()
    elastic.calibrate(batches)
    with torch.no_grad():
        assert_statistics(model.bn1, [model.stem(x) for x in batches], 3)
    assert model.bn1.momentum == momentum


def test_sync_batchnorm() -> None:
    """It is one process here; torch then runs it as a plain one."""
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert isinstance(model.bn1, nn.SyncBatchNorm)
    batches = images()
    for each in (model, other):
        elastic = pof.Elastic(each)
        elastic.prune(0.5)
        elastic.calibrate(batches)
    assert bits(model) == bits(other)


def test_instance_norm_that_tracks() -> None:
    """Its statistics are averages over samples of each sample's mean and unbiased variance."""
    model = Net(lambda channels: nn.InstanceNorm2d(channels, track_running_stats=True))
    model(images(1)[0])
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    batches = images()
    elastic.calibrate(batches)
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
    pof.Elastic(model).calibrate([x])
    with torch.no_grad():
        once = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
        second = model.fc(once)
    torch.testing.assert_close(model.bn.running_mean, (x.mean(0) + second.mean(0)) / 2)
    torch.testing.assert_close(model.bn.running_var, (x.var(0) + second.var(0)) / 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype) -> None:
    model = Net().to(dtype)
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    elastic.calibrate([x.to(dtype) for x in images()])
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
