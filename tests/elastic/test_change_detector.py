"""Changes that others make under a live Elastic are noticed and explained, and nothing breaks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from outside_changes import CHANGES, STATES, back_to_dense, equal, pruned, recovered, stored
from torch import nn

import pof
from tests.small_models import TwoNormNet, bits, four_images

# --- changes that must be noticed --------------------------------------------------------------------------------


def enter_at(elastic: pof.Elastic) -> None:
    with elastic.at(0.8):
        raise AssertionError("must not come here")


CALLS: dict[str, Callable[[pof.Elastic], Any]] = {
    "prune": lambda elastic: elastic.prune(0.6),
    "prune to where it is": lambda elastic: elastic.prune(0.5),
    "recover": lambda elastic: elastic.recover(0.1, 0.6),
    "restore": lambda elastic: elastic.restore(),
    "at": enter_at,
    "calibrate": lambda elastic: elastic.calibrate([four_images()]),
}


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_by_every_call_and_refresh_takes_it_up(
    change: str, state: Callable[[pof.Elastic], None], magnitudes: Any
) -> None:
    model = TwoNormNet()
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
    model = TwoNormNet()
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
    model = TwoNormNet()
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
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    CHANGES[change](model)
    with pytest.raises(pof.PofError, match="refresh"):
        elastic.layers() if read == "layers" else elastic.sparsity


def test_hold_without_the_layer_is_a_clear_error() -> None:
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    CHANGES["layer removed"](model)
    with pytest.raises(pof.PofError, match="refresh"):
        elastic.hold(torch.optim.SGD(model.parameters(), lr=0.1))


def test_biases_and_other_layers_may_change() -> None:
    model = TwoNormNet()
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
    model = TwoNormNet()
    model(four_images())
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
    model = TwoNormNet()
    model(four_images())
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
    model = TwoNormNet()
    if how == "no counter":
        model.bn.num_batches_tracked = model.bn2.num_batches_tracked = None
    model(four_images())
    before = bits(model)
    elastic = pof.Elastic(model)
    state(elastic)
    if how == "data":
        model.bn2.running_mean.data.add_(1.0)  # type: ignore[union-attr]
        model.bn2.running_var.data.mul_(2.0)  # type: ignore[union-attr]
    else:
        model(four_images())
    elastic.restore()
    assert bits(model) == before


# --- other tools of ours under a live Elastic --------------------------------------------------------------------


@pytest.mark.parametrize("state", [back_to_dense, pruned, recovered])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_a_pruned_pass_is_no_false_alarm(state: Callable[[pof.Elastic], None], magnitudes: Any) -> None:
    model = TwoNormNet()
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes)
    state(elastic)
    inside = bits(model)
    with pof.pruned(model, 0.8, magnitudes=magnitudes):
        model(four_images()).sum().backward()
    assert bits(model) == inside
    elastic.prune(0.6)
    elastic.restore()
    assert bits(model) == before


def test_hold_train_and_refresh() -> None:
    """Fine-tuning from a pruned state, and on to a sparser one."""
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    zero = model.fc.weight.detach() == 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    handle = elastic.hold(optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(four_images()).square().mean().backward()
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
