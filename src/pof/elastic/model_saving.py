"""Saving a model as one `.pof` file, with the BatchNorm statistics of its states."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from pof.checks import check_not_negative
from pof.elastic.batch_statistics import check_batches
from pof.elastic.live_model import LiveModel, state_now
from pof.errors import PofError, warn
from pof.file.contents import contents_of_model
from pof.file.encode import Encoder
from pof.file.header import StoredValues
from pof.file.writing import DEFAULT_STAGES
from pof.planning.name_globs import as_globs
from pof.planning.pruning_plan import Plan, plan
from pof.planning.wrappers import unwrap
from pof.ranking.sparsity_state import DENSE, Magnitudes, Scope, State, pruned_state, recovered_state

BAND_STARTS = (0.1, 0.3, 0.5, 0.7)
BAND_ENDS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The ends of the bands whose statistics are kept by default; those of other bands are interpolated."""
ESTIMATING = "BatchNorm statistics"
"""The title of its progress."""


def save(
    model: nn.Module,
    path: str | Path,
    *,
    values: StoredValues = "exact",
    stages: Sequence[float] = DEFAULT_STAGES,
    scope: Scope = "layer",
    magnitudes: Magnitudes = "raw",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    sparsities: Mapping[str, float] | None = None,
    calibrate: Iterable[Any] | None = None,
    states: Iterable[float | tuple[float, float]] | None = None,
    minutes: float = 0.0,
    metadata: Mapping[str, str] | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> int:
    """Write one small file that holds `model` at every sparsity; return its length in bytes.

    Args:
        model: any module; it is not changed. It is written as it is now: dense, or already pruned.
        path: a local path, or a URL that fsspec can write to. A local file is written whole or not at all.
        values: "exact" keeps every bit; "fp16" and "int8" (one scale per row) are smaller.
        stages: sparsities at which the file can be cut: a prefix that ends at a stage is the network at that sparsity.
        scope: as in `pof.Elastic`; at every sparsity the file gives what an `Elastic` with these settings gives.
        magnitudes: as in `pof.Elastic`: "unit" for models trained with `pof.attach`.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        sparsities: fixed sparsities by glob, as in `pof.plan`.
        calibrate: batches as in `Elastic.calibrate`; BatchNorm statistics are estimated for `states` and kept in the
            file, so that whoever loads it needs no data.
        states: sparsities, or pairs (recover_from, sparsity), to estimate statistics for; by default `default_states`.
        minutes: let the statistics of `states`, by default of the stages, learn as in `Elastic.calibrate`, for so long
            in all.
        metadata: strings to keep in the file.
        progress: called while statistics are estimated, which takes a while: with a title, how many states are done,
            and how many there are.

    Example:
        >>> import pathlib, tempfile, torch, pof
        >>> model = torch.nn.Linear(64, 64)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder) / "model.pof"
        ...     _ = pof.save(model, file)
        ...     pof.load(file, into=model, sparsity=0.7)
        State(sparsity=0.7, recover_from=0.7)
        >>> int((model.weight == 0).sum())
        2867
    """
    state = state_now(unwrap(model)) if isinstance(model, nn.Module) else DENSE
    if state != DENSE:
        warn(
            f"an Elastic has this model {state}, and the file will hold nothing denser: call elastic.restore() first, "
            "or elastic.refresh() if that is meant"
        )
    globs: dict[str, Any] = {
        "include": as_globs(include, "include"),
        "exclude": as_globs(exclude, "exclude"),
        "sparsities": sparsities,
    }
    writer = Encoder(contents_of_model(model, **globs), values, stages, scope, magnitudes)
    if calibrate is None and states is not None:
        raise PofError("states need data to estimate their statistics from: pass calibrate=batches too")
    check_not_negative(minutes, "minutes", "0 only estimates statistics")
    if calibrate is None and minutes:
        raise PofError("minutes need data to learn statistics from: pass calibrate=batches too")
    if calibrate is not None:
        wanted = default_states(writer.stages) if states is None else _states(states)
        learning = [pruned_state(stage) for stage in writer.stages] if states is None else wanted
        seconds = {state: 60 * minutes / len(learning) for state in learning if minutes}
        _calibrate(writer, model, plan(model, **globs), (scope, magnitudes), calibrate, wanted, seconds, progress)
    return writer.write(path, metadata or {})


def _calibrate(
    writer: Encoder,
    model: nn.Module,
    chosen: Plan,
    ranking: tuple[Scope, Magnitudes],
    batches: Iterable[Any],
    states: Sequence[State],
    seconds: Mapping[State, float],
    progress: Callable[[str, int, int], object] | None,
) -> None:
    """Estimate the statistics of `states` on a copy of the model with the weights that the file will hold.

    Those of the states in `seconds` learn for so long.
    """
    check_batches(batches)
    copied, data = copy.deepcopy(unwrap(model)).eval(), list(batches)
    writer.fill(copied)
    live = LiveModel(copied, chosen, *ranking)
    dense, teacher = live.dense_estimate(data), live.dense_copy() if seconds else None
    # The stages too: a reader with only part of the file interpolates between them.
    every = dict.fromkeys((*states, *map(pruned_state, writer.stages)))
    for done, state in enumerate(every):
        if progress is not None:
            progress(ESTIMATING, done, len(every))
        live.go(state)
        live.calibrate(data, dense)
        if state in seconds:
            live.learn_statistics(data, seconds[state], teacher)
        writer.keep_statistics(state, copied.state_dict())
    if progress is not None:
        progress(ESTIMATING, len(every), len(every))


def default_states(stages: Sequence[float]) -> list[State]:
    """The stages, their recovered states, and enough pruned states and bands to interpolate between."""
    grid = [0.1, 0.2, 0.3, 0.4, *(round(0.5 + 0.02 * i, 2) for i in range(21)), 0.92, 0.94, 0.95, 0.96]
    pruned = sorted({*grid, *stages})
    lows, highs = {*BAND_STARTS, *stages}, {*BAND_ENDS, *stages}
    bands = [recovered_state(low, high) for low in sorted(lows) for high in sorted(highs) if low < high]
    return [*(pruned_state(sparsity) for sparsity in pruned), *bands]


def _states(items: Iterable[float | tuple[float, float]]) -> list[State]:
    pairs = [(item, item) if not isinstance(item, tuple) else item for item in items] if _is_list(items) else None
    if pairs is None or any(len(pair) != 2 for pair in pairs):
        raise PofError(f"states={items!r} must list sparsities and pairs (recover_from, sparsity): [0.8, (0.5, 0.9)]")
    return [pruned_state(high) if low is high else recovered_state(low, high) for low, high in pairs]


def _is_list(items: object) -> bool:
    return isinstance(items, Iterable) and not isinstance(items, str)
