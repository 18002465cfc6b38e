"""All weights and BatchNorm statistics of a live model, moved from state to state together."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn

from pof.elastic.batch_statistics import (
    StateStatistics,
    Statistics,
    check_batches,
    estimated,
    norm_layers,
    unknown_norms,
    write_statistics,
)
from pof.elastic.learned_statistics import learn_statistics
from pof.elastic.live_weight import REFRESH, LiveWeight
from pof.elastic.paired_statistics import paired_statistics
from pof.errors import WeightsChangedError, warn
from pof.planning.pruning_plan import Plan
from pof.planning.shared_memory import identity
from pof.ranking.ranked_weight import Counts, remember
from pof.ranking.shares import band_counts
from pof.ranking.sparsity import prune_count
from pof.ranking.sparsity_state import DENSE, Magnitudes, Scope, State
from pof.sphere.compiler_guard import uncompiled

MANY_ZEROS = 0.1
"""The share of zeros from which on weights count as pruned already."""
NORMS_CHANGED = f"normalisation layers were replaced, added or removed: {REFRESH}"

GONE = -1
"""Stands for how often a weight has changed that no longer exists."""
_LIVE: WeakSet["LiveModel"] = WeakSet()
_LEFT: WeakKeyDictionary[nn.Module, tuple[State, list[tuple["ref[nn.Parameter]", int | None]]]] = WeakKeyDictionary()
"""The state that a model was last put into, its weights, and how often torch saw each of them change until then."""


def state_now(model: nn.Module) -> State:
    """The state that a `LiveModel` has put `model` into; dense if none has."""
    return next((each.state for each in list(_LIVE) if each.moves(model) and each.state != DENSE), DENSE)


def left_state(model: nn.Module) -> State:
    """The state that `model` is still in, even if what put it there is gone; dense if other code has changed it."""
    if model not in _LEFT:
        return DENSE
    state, weights = _LEFT[model]
    return state if all(_version(found()) == version for found, version in weights) else DENSE


def forget_left_state(model: nn.Module) -> None:
    """Take the present weights of `model` as dense ones from now on."""
    _LEFT.pop(model, None)


def _version(weight: nn.Parameter | None) -> int | None:
    if weight is None:
        return GONE
    return None if weight.is_inference() else weight._version


def forget_casts() -> None:
    """Drop autocast's half-precision copies of the weights: it does not notice that the weights have changed."""
    torch.clear_autocast_cache()


class LiveModel:
    """Remembers the dense model, and writes any state of it into the live one.

    Args:
        model: the live model.
        plan: which of its weights are pruned.
        scope: as in `Elastic`.
        magnitudes: as in `Elastic`.
    """

    def __init__(self, model: nn.Module, plan: Plan, scope: Scope, magnitudes: Magnitudes) -> None:
        parameters = plan.parameters(model)
        self.state = DENSE
        self.weights = [LiveWeight(entry, parameters[entry.name], magnitudes) for entry in plan]
        self.statistics = StateStatistics(model)
        self._model = model
        self._plan = plan
        self._scope = scope
        self._counts: dict[State, tuple[Counts, ...]] = {}
        self._counts_now = self._counts_of(DENSE)
        """The counts of the present state. Statistics go by these, since 0.3 and 0.1 + 0.2 are the same state."""
        self._between = False
        """Whether a change of state was interrupted, so that some weights are in the old state and some in the new."""
        _LIVE.add(self)

    def moves(self, model: nn.Module) -> bool:
        """Whether `model` is the one that this object moves from state to state."""
        return self._model is model

    @uncompiled
    def go(self, state: State) -> None:
        """Put the model into `state`. Everything that can fail comes before the first write."""
        self.check()
        if state == self.state and not self._between:
            return
        counts = self._counts_of(state)
        for weight, pair in zip(self.weights, counts, strict=True):
            weight.prepare(pair)
        if not self._between:
            self.statistics.leave(self._counts_now)
        self._between = True
        for weight, pair in zip(self.weights, counts, strict=True):
            weight.write(pair)
        forget_casts()
        self.statistics.enter(counts)
        self.state, self._counts_now, self._between = state, counts, False
        _LEFT[self._model] = (state, [(ref(w.parameter), _version(w.parameter)) for w in self.weights])

    def missing_zeros(self) -> int:
        """How many weights fewer than asked for are pruned, because each layer keeps one."""
        free = [weight for weight in self.weights if weight.entry.sparsity is None]
        if any(weight.counts[1] < weight.entry.size.most for weight in free):
            return 0
        wanted = prune_count(sum(weight.entry.weights for weight in free), self.state.sparsity)
        return max(0, wanted - sum(weight.counts[1] for weight in free))

    def check_reachable(self, state: State) -> None:
        """Raise if the layers cannot reach `state`."""
        self._counts_of(state)

    def check(self) -> None:
        """Raise if other code has changed the model."""
        self.check_layers()
        for weight in self.weights:
            what = weight.change()
            if what is not None:
                back = "; elastic.restore(discard=True) goes back" if weight.has_copy else ""
                raise WeightsChangedError(
                    f"weight {weight.entry.name!r} was {what} meanwhile: elastic.refresh() takes the present weights "
                    f"as the dense ones{back}"
                )

    def check_layers(self) -> None:
        """Raise if the model no longer has its original layers."""
        for weight in self.weights:
            live = self._live(weight)
            if live is not weight.parameter or live.shape != weight.entry.shape:
                raise WeightsChangedError(f"weight {weight.entry.name!r} was replaced: {REFRESH}")
        if not self.statistics.same_layers():
            raise WeightsChangedError(NORMS_CHANGED)

    def reset_statistics(self) -> None:
        """Give the present state the model's original statistics."""
        self.statistics.leave(self._counts_now)
        self.statistics.forget(self._counts_now)
        self.statistics.enter(self._counts_now)

    def calibrate(self, batches: Iterable[Any], dense: Statistics | None = None) -> int:
        """Give the present state statistics of its own, estimated in pairs; return how many batches there were.

        The dense state keeps those that it has. `dense` is what `dense_estimate` found on the same batches.
        """
        check_batches(batches)
        data = batches if isinstance(batches, Sequence) else list(batches)
        layers = norm_layers(self._model)
        if frozen := unknown_norms(self._model):
            more = f" and {len(frozen) - 1} more" if len(frozen) > 1 else ""
            warn(
                f"{frozen[0]}{more} keep statistics but are no BatchNorm of torch's, and stay as they are: "
                "put nn.BatchNorm in their place to calibrate them"
            )
        state = estimated(self._model, data)
        if not any(map(any, self._counts_now)):
            self._warn_of_zeros(layers)
        else:
            found = self.dense_estimate(data) if dense is None else dense
            kept = self.statistics.of(self._counts_of(DENSE))
            write_statistics(layers, paired_statistics(layers, kept, found, state))
        return len(data)

    def learn_statistics(self, batches: Iterable[Any], seconds: float, dense: nn.Module | None = None) -> bool:
        """Let the statistics of the present state learn from the dense network; return whether they have changed.

        `dense` is what `dense_copy` returned.
        """
        if not any(map(any, self._counts_now)):
            return False
        if not norm_layers(self._model):
            warn("there is no BatchNorm whose statistics could learn: minutes= does nothing for this model")
            return False
        teacher = self.dense_copy() if dense is None else dense
        data = batches if isinstance(batches, Sequence) else list(batches)
        return learn_statistics(self._model, teacher, [entry.name for entry in self._plan], data, seconds)

    def dense_copy(self) -> nn.Module:
        """A copy of the model in its dense state. Afterwards the model is in its former state."""
        before = self.state
        self.go(DENSE)
        try:
            return copy.deepcopy(self._model).requires_grad_(False)
        finally:
            self.go(before)

    def _warn_of_zeros(self, layers: Sequence[nn.Module]) -> None:
        """Warn if the dense weights look pruned: their statistics may be those of other weights."""
        zeros, weights = sum(w.zeros for w in self.weights), sum(w.entry.weights for w in self.weights)
        if layers and zeros > MANY_ZEROS * weights:
            warn(
                f"{zeros / weights:.0%} of the weights are zero, and calibrate() keeps the statistics of the weights "
                "that an Elastic began with: calibrate(batches, paired=False) replaces them"
            )

    def dense_estimate(self, batches: Iterable[Any]) -> Statistics:
        """The statistics that `batches` give with the dense weights. Afterwards the model is in its former state."""
        before = self.state
        self.go(DENSE)
        try:
            return estimated(self._model, batches)
        finally:
            self.go(before)

    @uncompiled
    def force_dense(self) -> None:
        """Write the dense weights and statistics, whatever has happened to the live ones, or change nothing at all."""
        targets = [(weight, self._live(weight)) for weight in self.weights]
        for weight, live in targets:
            weight.refuse_unwritable(live)
        if not self.statistics.same_layers():
            raise WeightsChangedError(NORMS_CHANGED)
        for weight, live in targets:
            weight.force_dense(live)
        forget_casts()
        self.statistics.force_original()

    def _live(self, weight: LiveWeight) -> nn.Parameter:
        """The parameter that the model now has under all names of `weight`."""
        found = [find_parameter(self._model, name) for name in weight.entry.names]
        if found[0] is None or not all(is_same(found[0], other) for other in found[1:]):
            raise WeightsChangedError(f"weight {weight.entry.name!r} was removed or untied: {REFRESH}")
        return found[0]

    def _counts_of(self, state: State) -> tuple[Counts, ...]:
        sizes = [entry.size for entry in self._plan]
        if self._scope == "layer" or state == DENSE:
            return tuple(band_counts(sizes, None, state))
        if state not in self._counts:
            keys = [weight.ranked().keys_across() for weight in self.weights]
            remember(self._counts, state, tuple(band_counts(sizes, keys, state)))
        return self._counts[state]


def find_parameter(model: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter called `name`, if there is one.

    `get_parameter` is slower: it would take most of the time of a change of state.
    """
    *path, attribute = name.split(".")
    module: nn.Module | None = model
    for part in path:
        module = module._modules.get(part) if module is not None else None
    return module._parameters.get(attribute) if module is not None else None


def is_same(one: nn.Parameter, other: nn.Parameter | None) -> bool:
    """Whether the two are the same parameter, or share their memory."""
    return one is other or (other is not None and identity(one) == identity(other))
