"""Finding the state that fits: the sparsest one that is good enough, or the densest that is small or fast enough."""

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from pof.elastic.batch_statistics import check_batches
from pof.elastic.layer_sensitivity import score_of
from pof.elastic.model_saving import save
from pof.errors import PofError
from pof.file.pof_file import PofFile
from pof.ranking.sparsity import check_sparsity
from pof.ranking.sparsity_state import DENSE, State, pruned_state
from pof.runtime.compiled_model import CompiledModel
from pof.runtime.fair_timing import milliseconds_of
from pof.terminal.text_table import text_table

STEP = 0.01
"""The distance between the sparsities to choose from."""


@dataclass(frozen=True)
class Limits:
    """The limits that a state must meet; None sets no limit."""

    at_least: float | None = None
    max_bytes: float | None = None
    max_ms: float | None = None

    def __post_init__(self) -> None:
        if self.at_least is None and self.max_bytes is None and self.max_ms is None:
            raise PofError("nothing to choose by: pass at_least=, max_bytes= or max_ms=")
        for name, value in vars(self).items():
            if value is not None and not (isinstance(value, Real) and math.isfinite(value)):
                raise PofError(f"{name}={value!r} must be a number")

    def hold(self, trial: "Trial") -> bool:
        """Whether everything that has a limit was measured, and is within it."""
        least = (self.at_least, trial.score)
        most = ((self.max_bytes, trial.bytes), (self.max_ms, trial.milliseconds))
        good = least[0] is None or (least[1] is not None and least[1] >= least[0])
        return good and all(limit is None or (found is not None and found <= limit) for limit, found in most)


class Measures(Protocol):
    """Measures a state in three ways. The search asks for each number at most once."""

    def score(self, state: State) -> float:
        """How good the state is: the higher, the better."""

    def bytes(self, state: State) -> int:
        """How many bytes of a file must be read to load the state."""

    def milliseconds(self, state: State) -> float:
        """How long a call of the model takes in this state."""


@dataclass(frozen=True)
class Trial:
    """A state that was tried, and its measurements; None means not measured."""

    state: State
    score: float | None = None
    bytes: int | None = None
    milliseconds: float | None = None


@dataclass(frozen=True)
class ChosenState:
    """The chosen state with its measurements, and all states that were tried; prints as a table."""

    state: State
    score: float | None
    bytes: int | None
    milliseconds: float | None
    tried: tuple[Trial, ...]

    def __str__(self) -> str:
        kinds = [k for k in ("score", "bytes", "milliseconds") if any(getattr(t, k) is not None for t in self.tried)]
        rows = [
            ("*" if trial.state == self.state else "", str(trial.state), *(getattr(trial, kind) for kind in kinds))
            for trial in self.tried
        ]
        cells = [tuple("" if cell is None else cell for cell in row) for row in rows]
        return text_table(("", "state", *kinds), cells)


def candidates(recover_from: float | None = None) -> list[State]:
    """The states to choose from, dense first: pruned ones, or recovered ones whose band begins at `recover_from`."""
    if recover_from is not None:
        check_sparsity(recover_from, "recover_from")
        if recover_from >= 1 - STEP:
            raise PofError(f"recover_from={recover_from:g} leaves no band: it must be below {1 - STEP:g}")
    grid = [round(STEP * number, 2) for number in range(1, round(1 / STEP))]
    return [DENSE, *(pruned_state(s, recover_from) for s in grid if recover_from is None or s > recover_from)]


def choose_state(states: Sequence[State], measures: Measures, limits: Limits) -> ChosenState:
    """Choose the last of `states` (dense first) that is good enough; if no score is asked for, the first that fits.

    It searches by bisection, which assumes that scores, bytes and times fall from each state to the next.

    Raises:
        PofError: no state meets all limits; the message says how near one comes.
    """
    seen = _Seen(measures)
    costs = {"bytes": limits.max_bytes, "milliseconds": limits.max_ms}
    first = max(0 if most is None else _first_within(states, seen, kind, most) for kind, most in costs.items())
    chosen = states[first]
    if limits.at_least is not None:
        least = limits.at_least
        if seen.of("score", chosen) < least:
            raise PofError(
                f"no state is good enough: the score of {chosen}, the densest that fits, is "
                f"{seen.of('score', chosen):.4g}, below at_least={least:g}"
            )
        chosen = states[_bisect(first, len(states), lambda i: seen.of("score", states[i]) >= least)]
    asked = {kind: most for kind, most in costs.items() if most is not None}
    if any(seen.of(kind, chosen) > most for kind, most in asked.items()):
        # Times vary from call to call: take a state that was measured within all limits.
        chosen = _seen_to_hold(states, seen, limits)
    found = seen.trial(chosen)
    return ChosenState(found.state, found.score, found.bytes, found.milliseconds, seen.trials())


def _seen_to_hold(states: Sequence[State], seen: "_Seen", limits: Limits) -> State:
    """The best of the states that were measured in full and met all limits."""
    holding = [trial for trial in seen.trials() if limits.hold(trial)]
    if not holding:
        raise PofError("no state that was measured fits: times vary too much, measure on an idle machine")
    return sorted((trial.state for trial in holding), key=states.index)[-1 if limits.at_least is not None else 0]


def _first_within(states: Sequence[State], seen: "_Seen", kind: str, most: float) -> int:
    if seen.of(kind, states[0]) <= most:
        return 0
    if (least := seen.of(kind, states[-1])) > most:
        raise PofError(f"no state fits: {states[-1]} has {least:,.6g} {kind}, more than {most:,g}")
    return _bisect(0, len(states), lambda i: seen.of(kind, states[i]) > most) + 1


def _bisect(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The last number in [low, high) for which `holds` is true. It is true for `low`, and once false it stays false."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


class _Seen:
    """Measures each state at most once, and remembers the order in which states were tried."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._found: dict[State, dict[str, float]] = {}

    def of(self, kind: str, state: State) -> float:
        found = self._found.setdefault(state, {})
        if kind not in found:
            found[kind] = getattr(self._measures, kind)(state)
        return found[kind]

    def trial(self, state: State) -> Trial:
        return Trial(state, **self._found.get(state, {}))  # type: ignore[arg-type]

    def trials(self) -> tuple[Trial, ...]:
        return tuple(map(self.trial, self._found))


class Searchable(Protocol):
    """What the search needs from a live model; `Elastic` provides it."""

    @property
    def model(self) -> nn.Module:
        """The live model."""

    @property
    def saving(self) -> Mapping[str, Any]:
        """The arguments of `pof.save` for a file whose weights are ranked as in the live model."""

    def at(self, sparsity: float, recover_from: float | None = None) -> AbstractContextManager[Any]:
        """Put the model into a state inside a block."""

    def go(self, state: State) -> None:
        """Put the model into a state."""

    def reachable(self, states: list[State]) -> list[State]:
        """Those of `states`, dense first, that the layers can reach."""

    def calibrate(self, batches: Iterable[Any]) -> int:
        """Estimate the BatchNorm statistics of the present state."""


def choose_live_state(
    live: Searchable,
    limits: Limits,
    evaluate: Callable[[nn.Module], float] | None = None,
    *,
    recover_from: float | None = None,
    calibrate: Iterable[Any] | None = None,
    values: str = "exact",
    example: Any = None,
) -> ChosenState:
    """Put a live model into the state that fits; arguments as in `Elastic.choose`."""
    if limits.max_ms is not None and example is None:
        raise PofError("max_ms needs inputs to time the model with: pass example=")
    if calibrate is not None:
        check_batches(calibrate)
    batches = None if calibrate is None else list(calibrate)
    measures = LiveMeasures(live, evaluate, batches, {**live.saving, "values": values}, example)
    with live.at(0.0):
        found = choose_state(live.reachable(candidates(recover_from)), measures, limits)
    live.go(found.state)
    return found


class LiveMeasures:
    """Measures states of a live model.

    Args:
        live: the live model.
        evaluate: returns the score of the model it is given.
        batches: if given, BatchNorm statistics are estimated from them in each state before it is scored.
        saving: the arguments of `pof.save`.
        example: the inputs to time the compiled model with.
    """

    def __init__(
        self,
        live: Searchable,
        evaluate: Callable[[nn.Module], float] | None,
        batches: Sequence[Any] | None,
        saving: Mapping[str, Any],
        example: Any,
    ) -> None:
        self._live, self._evaluate, self._batches = live, evaluate, batches
        self._saving, self._example = saving, example

    def score(self, state: State) -> float:
        """The score that `evaluate` returns in this state."""
        if self._evaluate is None:
            raise PofError("at_least needs a score: pass evaluate, a function of the model")
        with self._live.at(state.sparsity, state.band_start):
            if state != DENSE and self._batches is not None:
                self._live.calibrate(self._batches)
            return score_of(self._evaluate, self._live.model)

    def bytes(self, state: State) -> int:
        """How many bytes the state needs of a `.pof` file that holds the dense model, with stages for this state."""
        stages = sorted({state.sparsity, state.recover_from} - {0.0}, reverse=True)
        with self._live.at(0.0, None), tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.pof"
            save(self._live.model, path, stages=stages, **self._saving)
            return PofFile(path).bytes_for(state.sparsity, state.band_start)

    def milliseconds(self, state: State) -> float:
        """How long a call of the compiled model takes in this state."""
        with self._live.at(state.sparsity, state.band_start):
            return milliseconds_of(CompiledModel(self._live.model, self._example), self._example)
