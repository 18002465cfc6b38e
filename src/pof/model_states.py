"""All weights and BatchNorm statistics of a model, moved from state to state together."""

from weakref import WeakSet

import torch
from torch import nn

from pof.calibrate import StateStatistics
from pof.eager import eager
from pof.errors import WeightsChangedError
from pof.planning import Plan
from pof.prunable import identity
from pof.states import DENSE, Magnitudes, Scope, State, band_counts
from pof.weight_states import ElasticWeight, remember

Counts = tuple[tuple[int, int], ...]
"""For each weight how many are zero, and how many are zero or in the band."""

REFRESH = "elastic.refresh() takes the present model as the dense one"


_LIVE: WeakSet["ModelStates"] = WeakSet()


def state_now(model: nn.Module) -> State:
    """The state that a live `ModelStates` has put `model` into; dense if there is none."""
    return next((each.state for each in list(_LIVE) if each.moves(model) and each.state != DENSE), DENSE)


class ModelStates:
    """Knows the dense model and writes any state of it into the live one.

    Args:
        model: the live model.
        plan: its weights that are pruned.
        scope: as in `Elastic`.
        magnitudes: as in `Elastic`.
        many_states: whether to spend time and memory once so that each further state is quick.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, scope: Scope, magnitudes: Magnitudes, *, many_states: bool = True
    ) -> None:
        parameters = plan.parameters(model)
        self.state = DENSE
        self.weights = [ElasticWeight(e, parameters[e.name], magnitudes, many_states=many_states) for e in plan]
        self.statistics = StateStatistics(model)
        self._model = model
        self._plan = plan
        self._scope = scope
        self._counts: dict[State, Counts] = {}
        self._counts_now = self._counts_of(DENSE)
        """The counts of the present state; statistics belong to them, as 0.3 and 0.1 + 0.2 are the same state."""
        _LIVE.add(self)
        self._between = False
        """Whether a change of state was interrupted, so that the weights are partly of one and partly of another."""

    def moves(self, model: nn.Module) -> bool:
        """Whether it is this model that is moved from state to state."""
        return self._model is model

    @eager
    def go(self, state: State) -> None:
        """Put the model into `state`. Whatever can fail comes before the first write."""
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
        _forget_casts()
        self.statistics.enter(counts)
        self.state, self._counts_now, self._between = state, counts, False

    def check_reachable(self, state: State) -> None:
        """Refuse a state that the layers cannot be in."""
        self._counts_of(state)

    def check(self) -> None:
        """Refuse to go on from a model that somebody else changed."""
        self.check_layers()
        for weight in self.weights:
            what = weight.change()
            if what is not None:
                back = "; elastic.restore(discard=True) goes back to the remembered ones" if weight.has_copy else ""
                raise WeightsChangedError(
                    f"weight {weight.entry.name!r} was {what} since this Elastic last saw it: elastic.refresh() takes "
                    f"the present weights as the dense ones{back}"
                )

    def check_layers(self) -> None:
        """Refuse a model whose layers are no longer those that were seen first."""
        for weight in self.weights:
            live = self._live(weight)
            if live is not weight.parameter or live.shape != weight.entry.shape:
                raise WeightsChangedError(f"weight {weight.entry.name!r} was replaced: {REFRESH}")
        if not self.statistics.same_layers():
            raise WeightsChangedError(f"normalisation layers were replaced, added or removed: {REFRESH}")

    def reset_statistics(self) -> None:
        """Give the present state the statistics that the model had at first."""
        self.statistics.leave(self._counts_now)
        self.statistics.forget(self._counts_now)
        self.statistics.enter(self._counts_now)

    @eager
    def force_dense(self) -> None:
        """Write the dense weights and statistics whatever happened to the live ones, or change nothing at all."""
        targets = [(weight, self._live(weight)) for weight in self.weights]
        for weight, live in targets:
            weight.refuse_unwritable(live)
        if not self.statistics.same_layers():
            raise WeightsChangedError(f"normalisation layers were replaced, added or removed: {REFRESH}")
        for weight, live in targets:
            weight.force_dense(live)
        _forget_casts()
        self.statistics.force_original()

    def copy_dense(self) -> None:
        """Copy the dense weights now, so that `undo` has them."""
        for weight in self.weights:
            weight.dense()

    @eager
    def undo(self) -> None:
        """Write the dense weights and statistics back to where they came from, as far as that still is."""
        for weight in self.weights:
            if weight.parameter.shape == weight.entry.shape:
                weight.force_dense(weight.parameter)
        _forget_casts()
        self.statistics.force_original()

    def _live(self, weight: ElasticWeight) -> nn.Parameter:
        """The parameter that the model has now under all names of `weight`."""
        found = [_find(self._model, name) for name in weight.entry.names]
        if found[0] is None or not all(_is_same(found[0], other) for other in found[1:]):
            raise WeightsChangedError(f"weight {weight.entry.name!r} was removed or untied: {REFRESH}")
        return found[0]

    def _counts_of(self, state: State) -> Counts:
        if self._scope == "layer" or state == DENSE:
            return tuple(band_counts(self._plan.entries, None, state))
        if state not in self._counts:
            keys = [weight.keys_across() for weight in self.weights]
            remember(self._counts, state, tuple(band_counts(self._plan.entries, keys, state)))
        return self._counts[state]


def _forget_casts() -> None:
    """Autocast keeps half-precision copies of the weights, and does not see that we wrote new ones."""
    torch.clear_autocast_cache()


def _find(model: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter of that name; `get_parameter` would take most of the time of a change of state."""
    *path, attribute = name.split(".")
    module: nn.Module | None = model
    for part in path:
        module = module._modules.get(part) if module is not None else None
    return module._parameters.get(attribute) if module is not None else None


def _is_same(one: nn.Parameter, other: nn.Parameter | None) -> bool:
    """Whether the two are one parameter, or two that share their memory."""
    return one is other or (other is not None and identity(one) == identity(other))
