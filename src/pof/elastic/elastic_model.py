"""A live model at any sparsity: pruned, recovered and restored in place, without a wrapper."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pof.checks import check_choice, check_not_negative
from pof.elastic.batch_statistics import estimate_statistics
from pof.elastic.held_zeros import hold_zeros
from pof.elastic.layer_rows import LayerRow, LayerRows
from pof.elastic.layer_sensitivity import SPARSITIES, LayerScores, Sensitivity, score_of
from pof.elastic.live_model import LiveModel, forget_left_state, left_state
from pof.errors import PofError, warn
from pof.planning.live_paths import PathCheck, is_thin
from pof.planning.name_globs import as_globs
from pof.planning.pruning_plan import Plan, plan
from pof.planning.wrappers import unwrap
from pof.ranking.sparsity import check_sparsity
from pof.ranking.sparsity_state import DENSE, Magnitudes, Scope, State, pruned_state, recovered_state

if TYPE_CHECKING:
    from pof.elastic.state_search import ChosenState
    from pof.file.header import StoredValues


class Elastic:
    """Takes `model` to any sparsity and back, in place.

    The weights that the model has when its Elastic is made are the dense ones. They are copied when the model first
    leaves the dense state. A model stays in its state when its Elastic is dropped. If other code changes the weights
    (an optimiser step, `load_state_dict`, `.to(...)`), the next change of state raises an error; `refresh()` accepts
    the new weights. Only single values written through `.data`, where torch does not count changes, may go unnoticed.

    Args:
        model: any module, trained with pof or not.
        scope: "layer" prunes every weight tensor to the same sparsity (as in the paper); "global" ranks all of them
            together.
        magnitudes: "raw" is classic pruning; "unit" ranks unit-norm rows and gives each row its norm back (the paper's
            hypersphere, for models that were trained on it).
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        sparsities: fixed sparsities by glob, such as `{"fc": 0.5}`.

    Example:
        >>> model = nn.Linear(10, 10)
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
        self._globs = {"include": as_globs(include, "include"), "exclude": as_globs(exclude, "exclude")}
        self._sparsities = dict(sparsities) if isinstance(sparsities, Mapping) else sparsities
        left = left_state(self._model) if isinstance(model, nn.Module) else DENSE
        self.refresh()
        if left != DENSE:
            warn(
                f"an earlier Elastic left this model {left}, and this one takes those weights as the dense ones: call "
                "restore() on the earlier one first"
            )

    def __repr__(self) -> str:
        return f"Elastic({type(self._model).__name__}, {self.state}, scope={self.scope}, magnitudes={self.magnitudes})"

    @property
    def state(self) -> State:
        """The state that the model was last put into. "dense" means the weights that this Elastic started from."""
        return self._live.state

    @property
    def sparsity(self) -> float:
        """The share of the plan's weights that are zero, counted now."""
        return sum(row.zeros for row in self.layers()) / self.plan.weights

    @property
    def nbytes(self) -> int:
        """How many bytes of memory are held besides the dense copy of the weights."""
        return sum(weight.nbytes for weight in self._live.weights)

    def layers(self) -> LayerRows:
        """One row per weight tensor: how many of its weights are zero now, and the band that was filled."""
        self._live.check_layers()
        return LayerRows(
            LayerRow(
                name=weight.entry.name,
                weights=weight.entry.weights,
                zeros=weight.zeros,
                band=weight.counts[1] - weight.counts[0],
                alpha=weight.alpha,
                dead_rows=weight.dead_rows,
            )
            for weight in self._live.weights
        )

    def prune(self, sparsity: float) -> None:
        """Zero the `round(sparsity * n)` smallest weights; 0 gives exactly the dense weights."""
        self._live.go(pruned_state(sparsity))
        self._warn_of_state()

    def recover(self, sp1: float, sp2: float) -> None:
        """Prune at `sp1`, and replace the weights between pruning ratios `sp1` and `sp2` with alpha * sign(w)."""
        self._live.go(recovered_state(sp1, sp2))
        self._warn_of_state()

    def restore(self, *, discard: bool = False) -> None:
        """Bring back the dense weights and the original BatchNorm statistics, bit for bit.

        `discard=True` does so even if other code has changed the weights meanwhile, and discards that change.
        """
        if discard:
            self._live.force_dense()
            self.refresh()
            return
        self._live.go(DENSE)
        self._live.reset_statistics()

    @contextmanager
    def at(self, sparsity: float, recover_from: float | None = None) -> Iterator["Elastic"]:
        """Put the model at `sparsity` inside the block; its former state comes back after it, even on an exception."""
        before = self._live.state
        self._live.go(pruned_state(sparsity, recover_from))
        self._warn_of_state()
        try:
            yield self
        finally:
            self._live.go(before)

    def hold(self, optimizer: Optimizer) -> RemovableHandle:
        """Fine-tune from here: weights that are zero stay zero through every step of `optimizer`, until `remove()`.

        Call `refresh()` after training to make the trained weights the new dense ones.
        """
        self._live.check_layers()
        return hold_zeros(optimizer, self.plan.parameters(self._model))

    def calibrate(self, batches: Iterable[Any], *, paired: bool = True, minutes: float = 0.0) -> int:
        """Estimate the BatchNorm statistics of the present state from `batches`; return how many there were.

        The statistics belong to this state and come back with it, until `refresh()` forgets them. Every other state has
        its own, at first those that the model came with; `restore()` brings those back.

        Args:
            batches: a list or another iterable. A batch is a tensor, a tuple whose first element is the input, or a
                dict of keyword arguments. An iterable that is no sequence is read into memory.
            paired: run the dense network on the same batches too, and move the statistics that it came with by the
                difference; the dense state itself keeps them. False replaces them with the average over the batches, in
                the dense state too: for networks whose statistics are out of date.
            minutes: then let the statistics of this state learn from the dense network for so long, with all weights
                fixed. It pays at high sparsities, from a few hundred inputs on. A fifth of the batches is set aside; if
                the outputs for those come no nearer, the estimated statistics stay. A single batch is used for both.
        """
        check_not_negative(minutes, "minutes", "0 only estimates, 2 are a good start")
        self._live.check()
        data = batches if isinstance(batches, Sequence) or not minutes else list(batches)
        count = self._live.calibrate(data) if paired else estimate_statistics(self._model, data)
        if minutes:
            self._refuse_training()
            self._live.learn_statistics(data, 60 * minutes)
        return count

    def choose(
        self,
        evaluate: Callable[[nn.Module], float] | None = None,
        *,
        at_least: float | None = None,
        max_bytes: float | None = None,
        max_ms: float | None = None,
        recover_from: float | None = None,
        calibrate: Iterable[Any] | None = None,
        values: "StoredValues" = "exact",
        example: Any = None,
    ) -> "ChosenState":
        """Put the model into the state that fits, found by bisection over sparsities in hundredths.

        With `at_least`, that is the sparsest state with a high enough score; without it, the densest state that is
        small or fast enough.

        Args:
            evaluate: returns the score of the model it is given, the higher the better, such as the accuracy.
            at_least: the lowest score to accept.
            max_bytes: the most bytes of a `.pof` file, with `values`, that loading the state may need.
            max_ms: the most milliseconds that a call of the model may take after `pof.compile`, with inputs `example`.
            recover_from: choose among states with a filled band that begins here, instead of pruned ones.
            calibrate: batches as in `calibrate`; the BatchNorm statistics of each state are re-estimated before it is
                scored.
            values: as in `pof.save`.
            example: inputs as in `pof.compile`.

        Raises:
            PofError: no state fits; the model is back in its former state.

        Example:
            >>> model = nn.Linear(10, 10)
            >>> elastic = Elastic(model)
            >>> choice = elastic.choose(lambda model: float((model.weight != 0).float().mean()), at_least=0.375)
            >>> choice.state.sparsity, len(choice.tried)
            (0.62, 7)
        """
        # Imported here: the search may need the file and the runtime, which a live model does not.
        from pof.elastic.state_search import Limits, choose_live_state

        limits = Limits(at_least, max_bytes, max_ms)
        self._refuse_training()
        return choose_live_state(
            self, limits, evaluate, recover_from=recover_from, calibrate=calibrate, values=values, example=example
        )

    def sensitivity(
        self, evaluate: Callable[[nn.Module], float], sparsities: Sequence[float] = SPARSITIES
    ) -> Sensitivity:
        """How the score falls when each weight tensor is pruned alone, one row per tensor. The model is not changed.

        `sensitivity(...).allocate(0.8)` returns sparsities for `Elastic(model, sparsities=...)` that cost the least.

        Args:
            evaluate: returns the score of the model it is given, the higher the better. A negated loss shows small
                differences better than an accuracy does.
            sparsities: the sparsities to try for each weight tensor.
        """
        self._refuse_training()
        sparsities = tuple(sorted({check_sparsity(sparsity) for sparsity in sparsities}))
        if not sparsities or sparsities[-1] == 0:
            raise PofError("sparsities must list at least one above 0, such as (0.5, 0.9)")
        with self.at(0.0):
            dense = score_of(evaluate, self._model)
            rows = [self._alone(entry.name, evaluate, sparsities) for entry in self.plan]
        counts = {entry.name: entry.weights for entry in self.plan}
        return Sensitivity(dense, sparsities, tuple(rows), counts)

    @property
    def model(self) -> nn.Module:
        """The live model, without wrappers."""
        return self._model

    @property
    def saving(self) -> dict[str, Any]:
        """The arguments of `pof.save` for a file whose weights are ranked as they are here."""
        return {"scope": self.scope, "magnitudes": self.magnitudes, "sparsities": self._sparsities, **self._globs}

    def go(self, state: State) -> None:
        """Put the model into `state`, such as the `state` of another Elastic or of a search."""
        self._live.go(state)

    def reachable(self, states: list[State]) -> list[State]:
        """`states` without those at the end that are too sparse for small layers when all are ranked together."""
        for count in range(len(states), 1, -1):
            with suppress(PofError):
                self._live.check_reachable(states[count - 1])
                return states[:count]
        return states[:1]

    def _warn_of_state(self) -> None:
        """Warn if the state is not what the user may think: not as sparse as asked for, or dead."""
        if torch.compiler.is_compiling():
            return
        if missing := self._live.missing_zeros():
            warn(
                f"{self.state}, {missing:,} weights fewer than asked for are pruned, as each layer keeps one: "
                "elastic.sparsity counts the zeros"
            )
        kept = ((w.entry.weights - w.counts[0], w.entry.shape[0]) for w in self._live.weights)
        if thin := [count for count, rows in kept if is_thin(count, rows)]:
            self._paths.warn_if_dead(self.state, min(thin))

    def _refuse_training(self) -> None:
        """Raise if BatchNorm is in training mode, where scoring changes its statistics and the scores are wrong."""
        if any(module.training and getattr(module, "track_running_stats", False) for module in self._model.modules()):
            raise PofError("the model is in training mode: call model.eval() first, so that BatchNorm does not change")

    def _alone(self, name: str, evaluate: Callable[[nn.Module], float], sparsities: Sequence[float]) -> LayerScores:
        one = Elastic(self._model, magnitudes=self.magnitudes, include=(escape(name),))
        scores = []
        for sparsity in sparsities:
            with one.at(sparsity):
                scores.append(score_of(evaluate, self._model))
        return LayerScores(name, tuple(scores))

    def refresh(self) -> None:
        """Make the model's present weights and statistics the dense ones, and forget everything else."""
        chosen = plan(self._model, **self._globs, sparsities=self._sparsities)
        self._live = LiveModel(self._model, chosen, self.scope, self.magnitudes)
        self.plan: Plan = chosen
        self._paths = PathCheck(self._model)
        forget_left_state(self._model)
