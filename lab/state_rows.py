"""What the commands that test `pof.fit` share: the states, a row of figures over them, and the record of such rows."""

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

import pof
from pof.elastic.batch_statistics import estimate_statistics
from pof.elastic.half_precision import autocast
from pof.elastic.live_model import LiveModel
from pof.errors import PofError
from pof.file.atomic_write import replacing
from pof.fitting.fit_report import as_record
from pof.ranking.sparsity_state import DENSE, State, pruned_state
from pof.trainer.run_origin import made_with

SPARSITIES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
BANDS = ((0.3, 0.7), (0.5, 0.9))
STATES = (DENSE, *(pruned_state(s) for s in SPARSITIES), *(pruned_state(high, low) for low, high in BANDS))
Statistics = Literal["replaced", "paired"] | None
UNFITTED: dict[str, Statistics] = {
    "global magnitudes": None,
    "global magnitudes, statistics replaced": "replaced",
    "global magnitudes, statistics in pairs": "paired",
}
"""The rows without a fit of a network that has BatchNorm."""
LEARNING = tuple(pruned_state(sparsity) for sparsity in (0.6, 0.7, 0.8, 0.9))
"""The states whose statistics learn, if any do."""
Figure = TypeVar("Figure")


def figures_after_learning(
    model: nn.Module,
    states: Sequence[State],
    measure: Callable[[], Figure],
    batches: Sequence[Any],
    lessons: Sequence[Any],
    minutes: float,
    half: bool = False,
) -> list[Figure | None]:
    """What `measure` finds in each of `LEARNING` after its statistics have learnt from `lessons`; None in other states.

    They are estimated in pairs from `batches` first. Each of them takes `minutes`.
    """
    live = LiveModel(model, pof.plan(model), "global", "raw")
    with autocast(model, half):
        dense = live.dense_estimate(batches)
    teacher = live.dense_copy()
    found: list[Figure | None] = []
    for state in states:
        if state not in LEARNING:
            found.append(None)
            continue
        live.go(state)
        with autocast(model, half):
            live.calibrate(batches, dense)
        helped = live.learn_statistics(lessons, 60 * minutes, teacher)
        with torch.no_grad():
            found.append(measure())
        show_progress("learn", len(found) / len(states), f"{state}: {found[-1]}{'' if helped else ', taken back'}")
    live.go(DENSE)
    return found


@torch.no_grad()
def figures_by_state(
    model: nn.Module,
    states: Sequence[State],
    measure: Callable[[], Figure],
    statistics: Statistics = None,
    batches: Sequence[Any] = (),
    half: bool = False,
) -> list[Figure]:
    """What `measure` finds in each state of `model`, which is dense afterwards.

    Statistics stay as they are (None), or are estimated from `batches`, in bfloat16 if `half`.
    """
    live = LiveModel(model, pof.plan(model), "global", "raw")
    dense = None
    if statistics == "paired":
        with autocast(model, half):
            dense = live.dense_estimate(batches)
    found = []
    for state in states:
        live.go(state)
        with autocast(model, half):
            if statistics == "paired":
                live.calibrate(batches, dense)
            elif statistics == "replaced" and state != DENSE:
                estimate_statistics(model, batches)
        found.append(measure())
        show_progress("test", len(found) / len(states), f"{state}: {found[-1]}")
    live.go(DENSE)
    return found


def fitted(model: nn.Module, batches: Sequence[Any], inputs: int, minutes: float) -> dict[str, Any]:
    """Fit `model` in place to `batches`, which have `inputs` inputs; return what its record says of the fit."""
    report = pof.fit(model, batches, minutes=minutes, progress=show_progress)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\n{report}\npeak memory so far {peak:.2f} GiB", file=sys.stderr)
    about = {"minutes": minutes, "fitted_to": inputs, "peak_gib": round(peak, 2)}
    return about | {"fit": as_record(report), **made_with()}


def record_so_far(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The record that is there, if it is about the same; else a new one."""
    if path.exists():
        try:
            found: dict[str, Any] = json.loads(path.read_text())
            same = all(found.get(key) == value for key, value in about.items())
        except (OSError, ValueError, AttributeError) as error:
            raise PofError(f"cannot read the record {str(path)!r} ({error}): delete it to begin anew") from None
        if same:
            return found
    return dict(about)


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Write the record whole, or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")


def show_progress(stage: str, over: float, note: str) -> None:
    """Write one line about what is going on, over the last one."""
    print(f"\r{time.strftime('%H:%M:%S')} {stage} {over:.0%} {note:40.40}", end="", file=sys.stderr, flush=True)
