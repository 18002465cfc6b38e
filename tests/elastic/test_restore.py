"""The way back: changes thrown away, blocks of `at` that are left, calls that were interrupted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from outside_changes import CHANGES, STATES, back_to_dense, equal, pruned, recovered, step, stored
from torch import Tensor, nn

import pof
from pof.elastic import batch_statistics as calibrate
from pof.elastic.batch_statistics import StateStatistics
from pof.elastic.live_weight import LiveWeight
from pof.ranking.ranked_weight import RankedWeight
from tests.small_models import TwoNormNet, bits, four_images

# --- restore(discard=True) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [back_to_dense, pruned, recovered])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_discard_throws_the_change_away_or_says_why_not(change: str, state: Callable[[pof.Elastic], None]) -> None:
    model = TwoNormNet()
    model(four_images())
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
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    CHANGES[change](model)
    changed = bits(model)
    with pytest.raises(pof.WeightsChangedError, match=r"elastic\.refresh\(\)"):
        elastic.restore(discard=True)
    assert bits(model) == changed


@pytest.mark.parametrize("state", STATES)
def test_discard_with_nothing_to_discard_is_restore(state: Callable[[pof.Elastic], None]) -> None:
    model = TwoNormNet()
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    elastic.restore(discard=True)
    assert bits(model) == before
    assert elastic.sparsity == 0


def test_discard_brings_a_diverged_model_back() -> None:
    model = TwoNormNet()
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


# --- at ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_an_exception_inside_at_restores(state: Callable[[pof.Elastic], None], error: type[BaseException]) -> None:
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    state(elastic)
    before, was = bits(model), elastic.state
    with pytest.raises(error, match="mine"), elastic.at(0.9, recover_from=0.1):
        assert bits(model) != before
        raise error("mine")
    assert bits(model) == before
    assert elastic.state == was


def test_at_nests() -> None:
    model = TwoNormNet()
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
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.3)
    before = bits(model)
    with elastic.at(0.9):
        elastic.recover(0.1, 0.7)
        elastic.restore()
    assert bits(model) == before


def test_training_inside_at_is_an_error_that_hides_nothing() -> None:
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    with pytest.raises(pof.WeightsChangedError, match="refresh"), elastic.at(0.5):
        step(model, torch.optim.SGD)
    elastic = pof.Elastic(model)
    with pytest.raises(pof.WeightsChangedError) as caught, elastic.at(0.5):
        step(model, torch.optim.SGD)
        raise RuntimeError("mine")
    assert isinstance(caught.value.__context__, RuntimeError)


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
    model = TwoNormNet()
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    with interrupted(monkeypatch, LiveWeight, "write", call):
        MOVES[move](elastic)
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("call", [1, 2])
def test_going_back_after_an_interrupted_write(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    before = bits(model)
    with interrupted(monkeypatch, LiveWeight, "write", call):
        elastic.prune(0.8)
    elastic.prune(0.5)
    assert bits(model) == before


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupted_restore_can_be_repeated(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TwoNormNet()
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
    model = TwoNormNet()
    model(four_images())
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    if state in (pruned, recovered):
        elastic.calibrate([four_images()], paired=False)
    with interrupted(monkeypatch, StateStatistics, method, 1):
        elastic.prune(0.8)
    elastic.restore()
    assert bits(model) == before


def test_another_state_after_statistics_that_stopped_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them are of a state that the model never reached."""
    model = TwoNormNet()
    model(four_images())
    dense = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.8)
    elastic.calibrate([four_images()], paired=False)
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
    model = TwoNormNet()
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
    model = TwoNormNet()
    before = bits(model)
    elastic = pof.Elastic(model)
    with interrupted(monkeypatch, LiveWeight, "write", 4), elastic.at(0.5):  # 2 writes in, 2 out
        pass
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupted_way_into_a_pruned_pass(call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = TwoNormNet()
    before = bits(model)
    with interrupted(monkeypatch, RankedWeight, "write", call), pof.pruned(model, 0.5):
        raise AssertionError("must not come here")
    assert bits(model) == before
