"""What other people do to the weights under a live Elastic, and bad input: noticed, explained, nothing broken."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import pof
from pof.elastic.batch_statistics import StateStatistics
from pof.elastic import batch_statistics as calibrate
from pof.elastic.live_weight import LiveWeight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.stem(x)))
        logits: Tensor = self.fc(self.bn2(self.conv(x)).mean((2, 3)))
        return logits


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def images() -> Tensor:
    return torch.randn(4, 1, 5, 5)


def bits(model: nn.Module) -> dict[str, bytes]:
    """Everything that a model stores, byte by byte."""
    return {
        name: str(value.dtype).encode() + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }


# --- changes that must be noticed --------------------------------------------------------------------------------


def step(model: nn.Module, make: Callable[..., torch.optim.Optimizer], **settings: Any) -> None:
    optimizer = make(model.parameters(), lr=0.01, **settings)
    dtype = next(model.parameters()).dtype
    model(images().to(dtype)).square().sum().backward()
    optimizer.step()


def load(model: nn.Module, **settings: Any) -> None:
    model.load_state_dict(Net().state_dict(), **settings)


def replace_fc(model: Any, layer: nn.Module) -> None:
    model.fc = layer


def set_data(model: Any) -> None:
    model.fc.weight.data = torch.randn(6, 6)


def set_smaller_data(model: Any) -> None:
    model.fc.weight.data = torch.randn(3, 6)


def transpose_in_place(model: Any) -> None:
    """The same memory, shape and version: only the strides tell."""
    model.fc.weight.data = model.fc.weight.data.t()


@torch.no_grad()
def copy(model: Any) -> None:
    model.conv.weight.copy_(torch.randn(6, 4, 3, 3))


@torch.no_grad()
def nudge_one(model: Any) -> None:
    model.conv.weight[5, 3, 2, 1] += 1.0


def new_parameter(model: Any) -> None:
    model.fc.weight = nn.Parameter(torch.randn(6, 6))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda model: step(model, torch.optim.SGD),
    "sgd, foreach": lambda model: step(model, torch.optim.SGD, foreach=True, momentum=0.9),
    "adam, fused": lambda model: step(model, torch.optim.Adam, fused=True),
    "adamw": lambda model: step(model, torch.optim.AdamW, foreach=False),
    "load_state_dict": load,
    "load_state_dict, assign": lambda model: load(model, assign=True),
    "data.mul_": lambda model: model.conv.weight.data.mul_(1.01),
    "data.add_": lambda model: model.fc.weight.data.add_(0.5),
    "data = ": set_data,
    "data = of another shape": set_smaller_data,
    "transposed in place": transpose_in_place,
    "copy_": copy,
    "one weight": nudge_one,
    "half": lambda model: model.half(),
    "bfloat16 and back": lambda model: model.to(torch.bfloat16).float(),
    "double": lambda model: model.to(torch.float64),
    "fc only to float16": lambda model: model.fc.half(),
    "new parameter": new_parameter,
    "layer replaced": lambda model: replace_fc(model, nn.Linear(6, 6)),
    "layer replaced by a larger one": lambda model: replace_fc(model, nn.Linear(6, 60)),
    "layer removed": lambda model: replace_fc(model, nn.Identity()),
    "torch's own pruning": lambda model: torch_prune.l1_unstructured(model.fc, "weight", 0.5),
    "to the meta device": lambda model: model.fc.to_empty(device="meta"),
}


def never_left(elastic: pof.Elastic) -> None:
    del elastic


def back_to_dense(elastic: pof.Elastic) -> None:
    elastic.prune(0.4)
    elastic.restore()


def pruned(elastic: pof.Elastic) -> None:
    elastic.prune(0.5)


def recovered(elastic: pof.Elastic) -> None:
    elastic.recover(0.25, 0.75)


STATES = [never_left, back_to_dense, pruned, recovered]


def enter_at(elastic: pof.Elastic) -> None:
    with elastic.at(0.8):
        raise AssertionError("must not come here")


CALLS: dict[str, Callable[[pof.Elastic], Any]] = {
    "prune": lambda elastic: elastic.prune(0.6),
    "prune to where it is": lambda elastic: elastic.prune(0.5),
    "recover": lambda elastic: elastic.recover(0.1, 0.6),
    "restore": lambda elastic: elastic.restore(),
    "at": enter_at,
    "calibrate": lambda elastic: elastic.calibrate([images()]),
}


def stored(model: nn.Module) -> dict[str, Tensor]:
    """A copy of what the model stores; `bits` cannot read meta tensors."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        (value.device, value.dtype) == (b[name].device, b[name].dtype)
        and (value.is_meta or torch.equal(value, b[name]))
        for name, value in a.items()
    )


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_by_every_call_and_refresh_takes_it_up(
    change: str, state: Callable[[pof.Elastic], None], magnitudes: Any
) -> None:
    model = Net()
    elastic = pof.Elastic(model, magnitudes=magnitudes)
    state(elastic)
    CHANGES[change](model)
    changed = stored(model)
    for call in CALLS.values():
        with pytest.raises(pof.WeightsChangedError, match=r"elastic\.refresh\(\)") as caught:
            call(elastic)
        assert "\n" not in str(caught.value)
        assert equal(stored(model), changed), "the failing call left the model as it was"
    if change in ("to the meta device", "torch's own pruning"):
        return  # nothing that refresh() could take up
    elastic.refresh()
    assert str(elastic.state) == "dense"
    elastic.prune(0.6)
    assert elastic.sparsity == pytest.approx(0.6, abs=0.01)
    elastic.recover(0.2, 0.7)
    elastic.restore()
    assert equal(stored(model), changed), "the changed weights are the dense ones now"


def test_the_error_names_the_weight_and_what_happened() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    model.fc.half()
    with pytest.raises(pof.WeightsChangedError, match=r"'fc\.weight' .*float32 to torch\.float16"):
        elastic.prune(0.6)
    model.fc = nn.Linear(6, 6)
    with pytest.raises(pof.WeightsChangedError, match=r"'fc\.weight' was replaced"):
        elastic.prune(0.6)


@pytest.mark.parametrize("sparsity", [0.9, 0.99])
@pytest.mark.parametrize("seed", range(6))
def test_a_change_through_data_is_noticed_in_a_very_sparse_layer(sparsity: float, seed: int) -> None:
    """Scaling zeros changes nothing, so it is the few others that must be looked at."""
    torch.manual_seed(seed)
    model = nn.Linear(200, 100)
    elastic = pof.Elastic(model)
    elastic.prune(sparsity)
    model.weight.data.mul_(2.0)
    with pytest.raises(pof.WeightsChangedError):
        elastic.restore()


@pytest.mark.parametrize("columns", [slice(1, 6), slice(0, 1)])
def test_a_change_through_data_is_noticed_in_a_parameter_with_gaps(columns: slice) -> None:
    model = nn.Linear(6, 8)
    model.weight = nn.Parameter(torch.randn(8, 12)[:, ::2])
    elastic = pof.Elastic(model)
    elastic.prune(0.25)
    model.weight.data[:, columns] += 1.0
    with pytest.raises(pof.WeightsChangedError):
        elastic.restore()


def test_a_tie_that_somebody_broke_is_noticed() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    model[1] = nn.Linear(6, 6)
    with pytest.raises(pof.WeightsChangedError, match="refresh"):
        elastic.prune(0.6)
    elastic.refresh()
    assert len(elastic.layers()) == 2


def test_a_value_set_to_what_it_was_is_no_change_once_there_is_a_copy() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    elastic.prune(0.6)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    elastic.prune(0.7)
    assert elastic.sparsity == pytest.approx(0.7, abs=0.01)


@pytest.mark.parametrize("change", ["layer removed", "layer replaced by a larger one", "data = of another shape"])
@pytest.mark.parametrize("read", ["layers", "sparsity"])
def test_reading_a_model_whose_layers_are_others_is_a_clear_error(change: str, read: str) -> None:
    """Counting another layer's zeros would give numbers such as -49."""
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    CHANGES[change](model)
    with pytest.raises(pof.PofError, match="refresh"):
        elastic.layers() if read == "layers" else elastic.sparsity


def test_hold_without_the_layer_is_a_clear_error() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    CHANGES["layer removed"](model)
    with pytest.raises(pof.PofError, match="refresh"):
        elastic.hold(torch.optim.SGD(model.parameters(), lr=0.1))


def test_biases_and_other_layers_may_change() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.stem.weight.mul_(2.0)
        model.fc.bias.add_(1.0)
        model.bn.weight.mul_(3.0)
    expected = [model.stem.weight.clone(), model.fc.bias.clone(), model.bn.weight.clone()]
    elastic.prune(0.6)
    elastic.restore()
    now = [model.stem.weight, model.fc.bias, model.bn.weight]
    assert all(torch.equal(a, b) for a, b in zip(expected, now, strict=True))


# --- normalisation layers ----------------------------------------------------------------------------------------

NORMS: dict[str, Callable[[], nn.Module]] = {
    "removed": nn.Identity,
    "replaced by a larger one": lambda: nn.BatchNorm2d(7),
    "replaced by one without statistics": lambda: nn.BatchNorm2d(6, track_running_stats=False),
    "replaced by a fresh one": lambda: nn.BatchNorm2d(6),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("how", NORMS)
def test_a_replaced_batchnorm_is_noticed(how: str, state: Callable[[pof.Elastic], None]) -> None:
    """Its statistics are not those of the dense model."""
    model = Net()
    model(images())
    elastic = pof.Elastic(model)
    state(elastic)
    model.bn2 = NORMS[how]()  # type: ignore[assignment]
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError, match=r"elastic\.refresh\(\)"):
        elastic.prune(0.6)
    assert bits(model) == before
    elastic.refresh()
    elastic.prune(0.6)
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("how", NORMS)
def test_discard_with_a_replaced_batchnorm_is_all_or_nothing(how: str) -> None:
    model = Net()
    model(images())
    dense = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    model.bn2 = NORMS[how]()  # type: ignore[assignment]
    before = bits(model)
    try:
        elastic.restore(discard=True)
    except pof.WeightsChangedError as error:
        assert "refresh()" in str(error)  # noqa: PT017
        assert bits(model) == before
    else:
        assert all(bits(model)[name] == dense[name] for name in ("conv.weight", "fc.weight", "bn.running_mean"))


@pytest.mark.parametrize("state", [pruned, recovered])
@pytest.mark.parametrize("how", ["data", "no counter"])
def test_statistics_changed_where_torch_does_not_count_are_restored_too(
    how: str, state: Callable[[pof.Elastic], None]
) -> None:
    """torch counts neither changes through `.data` nor those that a BatchNorm's forward makes."""
    model = Net()
    if how == "no counter":
        model.bn.num_batches_tracked = model.bn2.num_batches_tracked = None
    model(images())
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    if how == "data":
        model.bn2.running_mean.data.add_(1.0)  # type: ignore[union-attr]
        model.bn2.running_var.data.mul_(2.0)  # type: ignore[union-attr]
    else:
        model(images())
    elastic.restore()
    assert bits(model) == before


# --- restore(discard=True) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [back_to_dense, pruned, recovered])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_discard_throws_the_change_away_or_says_why_not(change: str, state: Callable[[pof.Elastic], None]) -> None:
    model = Net()
    model(images())
    dense = {name: value.clone() for name, value in model.state_dict().items()}
    elastic = pof.Elastic(model)
    state(elastic)
    CHANGES[change](model)
    changed = stored(model)
    if change in (
        "data = of another shape",
        "layer removed",
        "layer replaced by a larger one",
        "torch's own pruning",
        "to the meta device",
    ):
        with pytest.raises(pof.PofError, match=r"refresh\(\)|meta"):
            elastic.restore(discard=True)
        assert equal(stored(model), changed)
        return
    elastic.restore(discard=True)
    for name in ("conv.weight", "fc.weight", "bn.running_mean", "bn2.running_var", "bn2.num_batches_tracked"):
        value = model.state_dict()[name]
        assert torch.equal(value, dense[name].to(value.dtype)), name
    assert str(elastic.state) == "dense"
    now = bits(model)
    elastic.prune(0.5)
    assert elastic.sparsity == pytest.approx(0.5, abs=0.01)
    elastic.restore()
    assert bits(model) == now


@pytest.mark.parametrize("change", ["sgd", "data.mul_", "half", "layer replaced"])
def test_discard_without_a_copy_is_an_error(change: str) -> None:
    model = Net()
    elastic = pof.Elastic(model)
    CHANGES[change](model)
    changed = bits(model)
    with pytest.raises(pof.WeightsChangedError, match=r"elastic\.refresh\(\)"):
        elastic.restore(discard=True)
    assert bits(model) == changed


@pytest.mark.parametrize("state", STATES)
def test_discard_with_nothing_to_discard_is_restore(state: Callable[[pof.Elastic], None]) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    elastic.restore(discard=True)
    assert bits(model) == before
    assert elastic.sparsity == 0


def test_discard_brings_a_diverged_model_back() -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.conv.weight.fill_(float("nan"))
    with pytest.raises(pof.WeightsChangedError, match="discard=True"):
        elastic.restore()
    elastic.restore(discard=True)
    assert bits(model) == before


def test_discard_keeps_tied_weights_tied() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    model[0].weight.data.add_(1.0)
    elastic.restore(discard=True)
    assert bits(model) == before
    assert model[0].weight is model[1].weight


# --- other tools of ours under a live Elastic --------------------------------------------------------------------


@pytest.mark.parametrize("state", [back_to_dense, pruned, recovered])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_a_pruned_pass_is_no_false_alarm(state: Callable[[pof.Elastic], None], magnitudes: Any) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes)
    state(elastic)
    inside = bits(model)
    with pof.pruned(model, 0.8, magnitudes=magnitudes):
        model(images()).sum().backward()
    assert bits(model) == inside
    elastic.prune(0.6)
    elastic.restore()
    assert bits(model) == before


def test_hold_train_and_refresh() -> None:
    """Fine-tuning from a pruned state, and on to a sparser one."""
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    zero = model.fc.weight.detach() == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    handle = elastic.hold(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(images()).square().mean().backward()
        optimizer.step()
    handle.remove()
    assert torch.equal(model.fc.weight == 0, zero)
    tuned = bits(model)
    with pytest.raises(pof.WeightsChangedError):
        elastic.restore()
    elastic.refresh()
    elastic.prune(0.75)
    assert bool((model.fc.weight[zero] == 0).all())
    elastic.restore()
    assert bits(model) == tuned


# --- at ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_an_exception_inside_at_restores(state: Callable[[pof.Elastic], None], error: type[BaseException]) -> None:
    model = Net()
    elastic = pof.Elastic(model)
    state(elastic)
    before, was = bits(model), elastic.state
    with pytest.raises(error, match="mine"), elastic.at(0.9, recover_from=0.1):
        assert bits(model) != before
        raise error("mine")
    assert bits(model) == before
    assert elastic.state == was


def test_at_nests() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    states = [bits(model)]
    with elastic.at(0.5):
        states.append(bits(model))
        with elastic.at(0.9, recover_from=0.2):
            states.append(bits(model))
            with elastic.at(0.0):
                assert bits(model) == states[0]
            assert bits(model) == states[2]
        assert bits(model) == states[1]
    assert bits(model) == states[0]
    assert len({tuple(state.items()) for state in states}) == 3


def test_at_can_be_left_elsewhere() -> None:
    """Whatever happens inside, the state before is the state after."""
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.3)
    before = bits(model)
    with elastic.at(0.9):
        elastic.recover(0.1, 0.7)
        elastic.restore()
    assert bits(model) == before


def test_training_inside_at_is_an_error_that_hides_nothing() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    with pytest.raises(pof.WeightsChangedError, match="refresh"), elastic.at(0.5):
        step(model, torch.optim.SGD)
    elastic = pof.Elastic(model)
    with pytest.raises(pof.WeightsChangedError) as caught, elastic.at(0.5):
        step(model, torch.optim.SGD)
        raise RuntimeError("mine")
    assert isinstance(caught.value.__context__, RuntimeError)


# --- bad input ---------------------------------------------------------------------------------------------------

BAD_SPARSITIES: dict[str, tuple[Any, str]] = {
    "70": (70, "0.7 for 70 %"),
    "-0.1": (-0.1, "-0.1"),
    "1.0": (1.0, "1.0 would leave no weights"),
    "100": (100, "100"),
    "nan": (float("nan"), "nan"),
    "inf": (float("inf"), "inf"),
    "text": ("0.7", "'0.7'"),
    "None": (None, "None"),
    "True": (True, "True"),
    "complex": (0.5j, "0.5j"),
    "list": ([0.5], "[0.5]"),
    "tensor": (torch.tensor([0.5, 0.6]), "tensor"),
}


def uses(elastic: pof.Elastic, model: nn.Module, value: Any) -> Iterator[Callable[[], Any]]:
    """Every way in which a sparsity can be passed."""

    @contextmanager
    def inside(context: Any) -> Iterator[None]:
        with context:
            yield

    yield lambda: elastic.prune(value)
    yield lambda: elastic.recover(0.1, value)
    yield lambda: elastic.at(value).__enter__()
    yield lambda: inside(pof.pruned(model, value)).__enter__()
    yield lambda: pof.Elastic(model, sparsities={"fc": value})
    if value is not None:
        yield lambda: elastic.recover(value, 0.9)
        yield lambda: elastic.at(0.9, recover_from=value).__enter__()
        yield lambda: inside(pof.pruned(model, 0.9, recover_from=value)).__enter__()


@pytest.mark.parametrize("name", BAD_SPARSITIES)
@pytest.mark.parametrize("state", STATES)
def test_a_bad_sparsity_is_one_clear_line_and_touches_nothing(name: str, state: Callable[[pof.Elastic], None]) -> None:
    value, words = BAD_SPARSITIES[name]
    model = Net()
    elastic = pof.Elastic(model)
    state(elastic)
    before, was = bits(model), elastic.state
    for use in uses(elastic, model, value):
        with pytest.raises(pof.PofError) as caught:
            use()
        message = str(caught.value)
        assert words in message
        assert "[0, 1)" in message
        assert "\n" not in message
        assert bits(model) == before
        assert elastic.state == was
    elastic.prune(0.35)
    assert elastic.sparsity == pytest.approx(0.35, abs=0.01)


@pytest.mark.parametrize("recover", ["recover", "at", "pruned"])
def test_a_band_the_wrong_way_round(recover: str) -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    before = bits(model)
    calls: dict[str, Callable[[], Any]] = {
        "recover": lambda: elastic.recover(0.7, 0.3),
        "at": lambda: elastic.at(0.3, recover_from=0.7).__enter__(),
        "pruned": lambda: pof.pruned(model, 0.3, recover_from=0.7).__enter__(),
    }
    low, high = ("sp1", "sp2") if recover == "recover" else ("recover_from", "sparsity")
    with pytest.raises(pof.PofError, match=rf"{low}=0\.7 must not exceed {high}=0\.3.*swap"):
        calls[recover]()
    assert bits(model) == before


def test_recover_needs_both_ends() -> None:
    """`recover(None, 0.7)` is a mistake, not `prune(0.7)`."""
    model = Net()
    before = bits(model)
    with pytest.raises(pof.PofError, match=r"sp1=None must be a number in \[0, 1\)"):
        pof.Elastic(model).recover(None, 0.7)  # type: ignore[arg-type]
    assert bits(model) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("at", [(0, 0), (3, 5)])
def test_weights_that_are_not_finite(value: float, magnitudes: Any, scope: Any, at: tuple[int, int]) -> None:
    """In the last layer, so that earlier ones could be written before it is noticed."""
    model = Net()
    with torch.no_grad():
        model.fc.weight[at] = value
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes, scope=scope)
    calls: list[Callable[[], Any]] = [
        lambda: elastic.prune(0.5),
        lambda: elastic.recover(0.2, 0.7),
        lambda: elastic.at(0.5).__enter__(),
        lambda: pof.pruned(model, 0.5, magnitudes=magnitudes, scope=scope).__enter__(),
    ]
    for call in calls:
        with pytest.raises(pof.PofError, match=r"'fc\.weight' holds NaN or inf") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert bits(model) == before
    with torch.no_grad():
        model.fc.weight[at] = 0.1
    elastic.refresh()
    elastic.prune(0.5)
    assert elastic.sparsity == 0.5


def test_a_diverged_model_after_refresh_says_nan() -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.conv.weight.fill_(float("nan"))
    elastic.refresh()
    with pytest.raises(pof.PofError, match=r"'conv\.weight' holds NaN or inf"):
        elastic.prune(0.5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.ReLU(), "nothing to prune in ReLU"),
        (nn.Sequential(nn.BatchNorm1d(3), nn.Embedding(3, 3)), "no convolution or linear"),
        (nn.Sequential(nn.Conv2d(3, 3, 3)), "the first convolution"),
    ],
)
def test_nothing_to_prune_is_an_error_at_once(model: nn.Module, words: str) -> None:
    with pytest.raises(pof.PofError, match=words):
        pof.Elastic(model)
    with pytest.raises(pof.PofError, match=words):
        pof.pruned(model, 0.5).__enter__()


def quantized() -> Tensor:
    return torch.quantize_per_tensor(torch.randn(6, 6), 0.1, 0, torch.qint8)


UNPRUNABLE: dict[str, tuple[Callable[[], Tensor], str]] = {
    "quantised": (quantized, "qint8"),
    "int8": (lambda: torch.ones(6, 6, dtype=torch.int8), "int8"),
    "float8": (lambda: torch.ones(6, 6).to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "complex": (lambda: torch.ones(6, 6, dtype=torch.complex64), "complex64"),
    "sparse": (lambda: torch.eye(6).to_sparse(), "sparse"),
    "meta": (lambda: torch.empty(6, 6, device="meta"), "meta"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("kind", UNPRUNABLE)
def test_weights_of_a_kind_that_cannot_be_pruned(kind: str) -> None:
    make, words = UNPRUNABLE[kind]
    model = Net()
    model.fc.weight = nn.Parameter(make(), requires_grad=False)
    conv = model.conv.weight.detach().clone()
    for call in (lambda: pof.Elastic(model), lambda: pof.pruned(model, 0.5).__enter__()):
        with pytest.raises(pof.PofError, match=words) as caught:
            call()
        assert "'fc.weight'" in str(caught.value)
        assert "\n" not in str(caught.value)
    elastic = pof.Elastic(model, exclude="fc")
    elastic.prune(0.5)
    elastic.restore()
    assert torch.equal(model.conv.weight, conv)


def test_a_weight_that_is_an_expanded_view() -> None:
    """Its rows are one memory, so they cannot be pruned apart: an error, before anything is written."""
    model = Net()
    model.fc.weight = nn.Parameter(torch.randn(1, 6).expand(6, 6))
    before = bits(model)
    with pytest.raises(pof.PofError, match=r"'fc\.weight'"):
        pof.Elastic(model).prune(0.5)
    assert bits(model) == before


def test_a_lazy_batchnorm_is_a_clear_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d())
    with pytest.raises(pof.PofError, match="run one batch"):
        pof.Elastic(model)


# --- interrupted -------------------------------------------------------------------------------------------------


@contextmanager
def interrupted(patch: pytest.MonkeyPatch, owner: type, method: str, call: int) -> Iterator[None]:
    """Inside, the `call`-th call of `method` raises KeyboardInterrupt; it must happen."""
    original, seen = getattr(owner, method), []

    def raising(*args: Any) -> Any:
        seen.append(args)
        if len(seen) == call:
            raise KeyboardInterrupt
        return original(*args)

    with patch.context() as inside, pytest.raises(KeyboardInterrupt):
        inside.setattr(owner, method, raising)
        yield
    assert len(seen) >= call


MOVES: dict[str, Callable[[pof.Elastic], None]] = {
    "prune": lambda elastic: elastic.prune(0.8),
    "recover": lambda elastic: elastic.recover(0.3, 0.9),
}


@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("move", MOVES)
def test_restore_after_an_interrupted_write(
    call: int, state: Callable[[pof.Elastic], None], move: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    with interrupted(monkeypatch, LiveWeight, "write", call):
        MOVES[move](elastic)
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("call", [1, 2])
def test_going_back_after_an_interrupted_write(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    before = bits(model)
    with interrupted(monkeypatch, LiveWeight, "write", call):
        elastic.prune(0.8)
    elastic.prune(0.5)
    assert bits(model) == before


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupted_restore_can_be_repeated(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with interrupted(monkeypatch, LiveWeight, "write", call):
        elastic.restore()
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("method", ["leave", "enter"])
@pytest.mark.parametrize("state", STATES)
def test_restore_after_an_interruption_at_the_statistics(
    method: str, state: Callable[[pof.Elastic], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    model(images())
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    if state in (pruned, recovered):
        elastic.calibrate([images()])
    with interrupted(monkeypatch, StateStatistics, method, 1):
        elastic.prune(0.8)
    elastic.restore()
    assert bits(model) == before


def test_another_state_after_statistics_that_stopped_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them are of a state that the model never reached."""
    model = Net()
    model(images())
    dense = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.8)
    elastic.calibrate([images()])
    elastic.restore()

    def half(model: nn.Module, statistics: list[Tensor]) -> None:
        calibrate.buffers(model)[0].copy_(statistics[0])
        raise KeyboardInterrupt

    with monkeypatch.context() as inside, pytest.raises(KeyboardInterrupt):
        inside.setattr(calibrate, "write_statistics", half)
        elastic.prune(0.8)
    assert bits(model)["bn.running_mean"] != dense["bn.running_mean"]
    elastic.prune(0.5)
    assert bits(model)["bn.running_mean"] == dense["bn.running_mean"], "it was never calibrated at 0.5"
    elastic.restore()
    assert bits(model) == dense


def test_a_write_that_stops_half_way_through_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)

    def half(self: LiveWeight, counts: tuple[int, int]) -> None:
        self.parameter.detach().view(-1)[:10].zero_()
        raise KeyboardInterrupt

    with monkeypatch.context() as inside, pytest.raises(KeyboardInterrupt):
        inside.setattr(LiveWeight, "write", half)
        elastic.prune(0.8)
    elastic.restore(discard=True)
    assert bits(model) == before


def test_an_interrupted_way_out_of_at(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    with interrupted(monkeypatch, LiveWeight, "write", 4), elastic.at(0.5):  # 2 writes in, 2 out
        pass
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupted_way_into_a_pruned_pass(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    before = bits(model)
    with interrupted(monkeypatch, LiveWeight, "write", call), pof.pruned(model, 0.5):
        raise AssertionError("must not come here")
    assert bits(model) == before
