"""Chooses the state of a trained network that meets limits on accuracy, bytes and time."""

from pathlib import Path

from torch import Tensor, nn

from pof.data.protocol import Dataset
from pof.elastic.state_search import ChosenState, Limits, candidates, choose_state
from pof.errors import PofError
from pof.file.locations import suffix_of
from pof.file.pof_file import PofFile
from pof.ranking.sparsity_state import State
from pof.runtime.compiled_model import CompiledModel
from pof.runtime.fair_timing import milliseconds_of
from pof.trainer.accuracy_sweep import accuracy, calibration_batches
from pof.trainer.trained import Trained


def choose_for(
    source: str | Path,
    found: Trained,
    limits: Limits,
    *,
    recover_from: float | None = None,
    calibrate: bool = True,
    as_stored: bool = True,
) -> ChosenState:
    """Choose the state of `found`, loaded from `source`, that meets `limits`.

    A .pof file is measured as it is: with the BatchNorm statistics that it keeps, and the bytes that are read from it.
    For other networks, `calibrate` re-estimates the statistics of each state, and its bytes are those of a file with
    exact values that ends at that state. `as_stored=False` treats a .pof file like any other.
    """
    example = next(found.data.test_batches(1))[0]
    if suffix_of(source) == ".pof" and as_stored:
        measures = _FileMeasures(found.model, PofFile(source), found.data, example)
        return choose_state(_small_enough(candidates(recover_from), measures, limits), measures, limits)
    return found.elastic.choose(
        lambda model: accuracy(model, found.data),
        **vars(limits),
        recover_from=recover_from,
        calibrate=calibration_batches(found.data) if calibrate else None,
        example=example,
    )


def _small_enough(states: list[State], measures: "_FileMeasures", limits: Limits) -> list[State]:
    """Return all states within the byte limit. Bytes do not fall steadily around stages, so each state is checked."""
    if limits.max_bytes is None:
        return states
    sizes = {state: measures.bytes(state) for state in states}
    found = [state for state in states if sizes[state] <= limits.max_bytes]
    if not found:
        state, size = min(sizes.items(), key=lambda pair: pair[1])
        raise PofError(f"no state fits: the smallest, {state}, has {size:,} bytes, more than {limits.max_bytes:,g}")
    return found


class _FileMeasures:
    """Measures states as they are in a file."""

    def __init__(self, model: nn.Module, file: PofFile, data: Dataset, example: Tensor) -> None:
        self._model, self._file, self._data, self._example = model, file, data, example

    def score(self, state: State) -> float:
        """The accuracy on all test images."""
        self._load(state)
        return accuracy(self._model, self._data)

    def bytes(self, state: State) -> int:
        """The bytes that are read from the file."""
        return self._file.bytes_for(state.sparsity, state.band_start)

    def milliseconds(self, state: State) -> float:
        """The time of one call of the compiled model, with one image."""
        self._load(state)
        return milliseconds_of(CompiledModel(self._model, self._example), self._example)

    def _load(self, state: State) -> None:
        self._model.load_state_dict(self._file.state_dict(state.sparsity, state.band_start))
