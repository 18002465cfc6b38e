"""calibrate: any batches will do, what it finds belongs to the state, and nothing else of the model moves."""

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import pof
from tests.small_models import AnyNormNet, bits, image_batches

# --- left as found -----------------------------------------------------------------------------------------------


def test_modes_and_momentum_are_left_as_found() -> None:
    model = AnyNormNet()
    model.bn1.momentum, model.bn2.momentum = 0.3, None
    model.train()
    model.bn2.eval()
    model.conv.eval()
    modes = {name: module.training for name, module in model.named_modules()}
    pof.Elastic(model).calibrate(image_batches())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert (model.bn1.momentum, model.bn2.momentum) == (0.3, None)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_what_runs_is_in_evaluation_mode_but_for_the_norms(training: bool) -> None:
    model = AnyNormNet().train(training)
    seen: list[dict[str, bool]] = []
    grads: list[bool] = []

    def look(module: nn.Module, inputs: Any) -> None:
        seen.append({name: each.training for name, each in model.named_modules()})
        grads.append(torch.is_grad_enabled())

    model.register_forward_pre_hook(look)
    pof.Elastic(model).calibrate(image_batches(2))
    on = {"bn1", "bn2"}
    assert seen == [{name: name in on for name, _ in model.named_modules()}] * 2
    assert grads == [False, False]


def test_dropout_is_off_so_it_is_repeatable() -> None:
    model = AnyNormNet()
    elastic = pof.Elastic(model)
    batches = image_batches()
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
    batches = image_batches()
    copies = [x.clone() for x in batches]
    pof.Elastic(AnyNormNet()).calibrate(batches)
    assert all(torch.equal(a, b) for a, b in zip(batches, copies, strict=True))


# --- they belong to the state ------------------------------------------------------------------------------------


def test_statistics_belong_to_their_state() -> None:
    model = AnyNormNet()
    model(image_batches(1)[0])
    dense = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    assert bits(model)["bn1.running_mean"] == dense["bn1.running_mean"]
    elastic.calibrate(image_batches())
    at_07 = bits(model)
    assert at_07["bn2.running_var"] != dense["bn2.running_var"]

    elastic.prune(0.5)
    uncalibrated = bits(model)
    assert all(uncalibrated[name] == dense[name] for name in dense if name.startswith("bn")), "its own: the dense ones"
    elastic.recover(0.3, 0.7)
    assert bits(model)["bn2.running_var"] == dense["bn2.running_var"], "a band at 0.7 is not pruned at 0.7"
    elastic.calibrate(image_batches(2))
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
    model = AnyNormNet()
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.calibrate(image_batches(), paired=False)
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
    elastic.calibrate(image_batches())
    elastic.refresh()
    calibrated = bits(model)
    elastic.prune(0.5)
    elastic.restore()
    assert bits(model) == calibrated


def test_refresh_forgets_statistics_of_states() -> None:
    model = AnyNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    elastic.calibrate(image_batches())
    elastic.restore()
    elastic.refresh()
    dense = bits(model)
    elastic.prune(0.7)
    assert bits(model)["bn1.running_mean"] == dense["bn1.running_mean"]


def test_statistics_trained_in_a_state_are_that_states_too() -> None:
    model = AnyNormNet()
    dense = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    model.train()(image_batches(1)[0])
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
    model, other = AnyNormNet(), AnyNormNet()
    other.load_state_dict(model.state_dict())
    batches = image_batches()
    assert pof.Elastic(model).calibrate(KINDS[kind](batches)) == 3
    pof.Elastic(other).calibrate(batches)
    assert bits(model) == bits(other)


@pytest.mark.parametrize("empty", [[], (), iter([]), (x for x in [])])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d, lambda _: nn.Identity()])
def test_no_batches_is_an_error(empty: Iterable[Tensor], norm: Callable[[int], nn.Module]) -> None:
    model = AnyNormNet(norm)
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
    model = AnyNormNet()
    model(image_batches(1)[0])
    model.bn1.eval()
    elastic = pof.Elastic(model)
    if state != "dense":
        elastic.prune(0.5)
    if state == "pruned and calibrated":
        elastic.calibrate(image_batches())
    before, modes = bits(model), {name: module.training for name, module in model.named_modules()}
    with pytest.raises(type(error), match="mine"):
        elastic.calibrate(raising(image_batches(2), error))
    assert bits(model) == before
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert (model.bn1.momentum, model.bn2.momentum) == (0.1, 0.1)


@pytest.mark.parametrize("bad", [torch.zeros(2, 3, 6, 6), torch.zeros(2, 1, 2, 2), "text", None, {"z": 1}, ()])
def test_a_bad_batch_in_the_middle_leaves_everything_as_it_was(bad: Any) -> None:
    model = AnyNormNet()
    model(image_batches(1)[0])
    before, modes = bits(model), {name: module.training for name, module in model.named_modules()}
    elastic = pof.Elastic(model)
    good = image_batches()
    with pytest.raises((RuntimeError, TypeError, AttributeError, IndexError, ValueError)):
        elastic.calibrate([good[0], bad, good[1]])
    assert bits(model) == before
    assert {name: module.training for name, module in model.named_modules()} == modes
    elastic.prune(0.5)
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite(value: float) -> None:
    model = AnyNormNet()
    before = bits(model)
    elastic = pof.Elastic(model)
    batches = image_batches()
    batches[1][2, 0, 3, 3] = value
    with pytest.raises(pof.PofError, match="NaN or inf"):
        elastic.calibrate(batches)
    assert bits(model) == before


def test_changed_weights_are_noticed_before_anything_runs() -> None:
    model = AnyNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.fc.weight.add_(1.0)
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError):
        elastic.calibrate(raising([], AssertionError("must not be read")))
    assert bits(model) == before
