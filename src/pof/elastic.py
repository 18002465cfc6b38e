"""A live model at any sparsity: pruned, recovered and dense again, in place, without a wrapper."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pof import calibrate as bn
from pof.calibrate import StateStatistics
from pof.errors import WeightsChangedError
from pof.globs import as_globs
from pof.hold import hold_zeros
from pof.planning import Plan, plan, unwrap
from pof.states import DENSE, Magnitudes, Scope, State, band_counts, check_choice, checked_state
from pof.table import text_table
from pof.weight_states import ElasticWeight


@dataclass(frozen=True)
class LayerRow:
    """One weight as it is now."""

    name: str
    weights: int
    zeros: int
    band: int
    """How many weights are filled with alpha * sign(w)."""
    alpha: float


class LayerRows(list[LayerRow]):
    """The rows of `Elastic.layers()`; prints as a table."""

    def __str__(self) -> str:
        rows = [(r.name, r.weights, r.zeros, r.zeros / r.weights, r.band, r.alpha) for r in self]
        return text_table(("weight", "weights", "zeros", "sparsity", "band", "alpha"), rows)

    __repr__ = __str__


class Elastic:
    """Takes `model` to any sparsity and back, in place.

    It knows the weights as they are when it is made. The dense weights are copied when the model first leaves the dense
    state. A model stays in its state when its Elastic is dropped. Changes that somebody else makes to the weights (an
    optimiser step, `load_state_dict`, `.to(...)`) are noticed at the next call: `refresh()` takes them up.

    Args:
        model: any module, trained with pof or not.
        scope: "layer" prunes every weight tensor alike (the paper); "global" ranks all of them together.
        magnitudes: "raw" is classic pruning; "unit" ranks unit-norm rows and gives each row its norm back (the paper's
            hypersphere, for models that were trained on it).
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        sparsities: fixed sparsities by glob, such as `{"fc": 0.5}`.

    Example:
        >>> model = torch.nn.Linear(10, 10)
        >>> elastic = Elastic(model)
        >>> elastic.prune(0.7)
        >>> elastic.sparsity
        0.7
        >>> elastic.recover(0.3, 0.7)
        >>> elastic.sparsity
        0.3
        >>> elastic.restore()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        scope: Scope = "layer",
        magnitudes: Magnitudes = "raw",
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        sparsities: Mapping[str, float] | None = None,
    ) -> None:
        check_choice(scope, "scope", ("layer", "global"))
        check_choice(magnitudes, "magnitudes", ("raw", "unit"))
        self.scope: Scope = scope
        self.magnitudes: Magnitudes = magnitudes
        self._model = unwrap(model) if isinstance(model, nn.Module) else model
        self._globs = {"include": as_globs(include), "exclude": as_globs(exclude)}
        self._sparsities = dict(sparsities or {})
        self.refresh()

    @property
    def state(self) -> State:
        """The state that the model was last put into."""
        return self._state

    @property
    def sparsity(self) -> float:
        """Zeros / weights of the plan, counted now."""
        return sum(row.zeros for row in self.layers()) / self.plan.weights

    @property
    def nbytes(self) -> int:
        """Memory held beside the dense copy of the weights."""
        return sum(weight.nbytes for weight in self._weights)

    def layers(self) -> LayerRows:
        """One row a weight: how many are zero now, and the band that was filled."""
        live = self.plan.parameters(self._model)
        return LayerRows(
            LayerRow(
                name=weight.entry.name,
                weights=weight.entry.weights,
                zeros=weight.entry.weights - int(torch.count_nonzero(live[weight.entry.name].detach())),
                band=weight.counts[1] - weight.counts[0],
                alpha=weight.alpha,
            )
            for weight in self._weights
        )

    def prune(self, sparsity: float) -> None:
        """Zero the smallest weights, `round(sparsity * n)` of them; 0 is exactly dense."""
        self._go(checked_state(sparsity))

    def recover(self, sp1: float, sp2: float) -> None:
        """Prune at `sp1`, and replace the weights between pruning ratio `sp1` and `sp2` by alpha * sign(w)."""
        self._go(checked_state(sp2, sp1))

    def restore(self, *, discard: bool = False) -> None:
        """Back to the dense weights and BatchNorm statistics that the model had at first, bit for bit.

        `discard=True` does so also when somebody else changed the weights meanwhile, and throws that change away.
        """
        if discard:
            self._force_dense()
            return
        self._go(DENSE)
        self._original_statistics()

    @contextmanager
    def at(self, sparsity: float, recover_from: float | None = None) -> Iterator["Elastic"]:
        """The model at `sparsity` inside the block, and in its former state after it, also on an exception."""
        before = self._state
        self._go(checked_state(sparsity, recover_from))
        try:
            yield self
        finally:
            self._go(before)

    def hold(self, optimizer: Optimizer) -> RemovableHandle:
        """Fine-tune from here: what is zero stays zero through every step of `optimizer`, until `remove()`.

        Call `refresh()` after the training, to take the trained weights as the new dense ones.
        """
        return hold_zeros(optimizer, self.plan.parameters(self._model))

    def calibrate(self, batches: Iterable[Any]) -> int:
        """Re-estimate the BatchNorm statistics of the present state from `batches`; return how many there were.

        They belong to this state: another state has its own (the dense ones until calibrated), and coming back brings
        these back. A batch is a tensor, a tuple whose first element is the input, or a dict of keyword arguments.
        """
        self._check()
        return bn.estimate_statistics(self._model, batches)

    def refresh(self) -> None:
        """Take the weights and statistics that the model has now as the dense ones, and forget everything else."""
        self.plan: Plan = plan(self._model, **self._globs, sparsities=self._sparsities)
        parameters = self.plan.parameters(self._model)
        self._weights = [ElasticWeight(entry, parameters[entry.name], self.magnitudes) for entry in self.plan]
        self._counts: dict[State, list[tuple[int, int]]] = {}
        self._state = DENSE
        self._statistics = StateStatistics(self._model)

    def _go(self, state: State) -> None:
        """Put the model into `state`. Whatever can fail comes before the first write."""
        self._check()
        if state == self._state:
            return
        counts = self._counts_of(state)
        for weight, pair in zip(self._weights, counts, strict=True):
            weight.dense()
            weight.prepare(pair)
        self._statistics.leave(self._state)
        for weight, pair in zip(self._weights, counts, strict=True):
            weight.write(pair)
        self._statistics.enter(state)
        self._state = state

    def _counts_of(self, state: State) -> list[tuple[int, int]]:
        if state not in self._counts:
            together = self.scope == "global" and state != DENSE
            keys = [weight.keys_across() for weight in self._weights] if together else None
            self._counts[state] = band_counts(self.plan.entries, keys, state)
        return self._counts[state]

    def _check(self) -> None:
        """Refuse to go on from weights that somebody else changed."""
        for weight in self._weights:
            name = weight.entry.name
            what = "replaced" if self._live(name) is not weight.parameter else weight.change()
            if what is not None:
                raise WeightsChangedError(
                    f"weight {name!r} was {what} since this Elastic last saw it: elastic.refresh() takes the present "
                    "weights as the dense ones; elastic.restore(discard=True) goes back to the remembered ones"
                )

    def _live(self, name: str) -> nn.Parameter | None:
        try:
            return self._model.get_parameter(name)
        except AttributeError:
            return None

    @torch.no_grad()
    def _force_dense(self) -> None:
        targets = [(self._live(weight.entry.name), weight) for weight in self._weights]
        for live, weight in targets:
            if live is None or live.shape != weight.entry.shape:
                raise WeightsChangedError(
                    f"weight {weight.entry.name!r} is gone or has another shape: elastic.refresh() takes the present "
                    "weights as the dense ones"
                )
            if weight.has_copy is False and weight.change() is not None:
                raise WeightsChangedError(
                    f"weight {weight.entry.name!r} changed before the model first left the dense state, so there is no "
                    "copy to go back to: elastic.refresh() takes the present weights as the dense ones"
                )
        for live, weight in targets:
            if live is not None and weight.has_copy:
                live.copy_(weight.dense())
        self._original_statistics()
        self.refresh()

    def _original_statistics(self) -> None:
        self._statistics.leave(self._state)
        self._statistics.forget(DENSE)
        self._statistics.enter(DENSE)
