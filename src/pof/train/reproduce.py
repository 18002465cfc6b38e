"""Runs experiments one after the other, skips what is done, and keeps a small record of each that finished."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pof.errors import PofError
from pof.replacing import replacing
from pof.train.events import Show
from pof.train.experiments import COST, Experiment
from pof.train.folder import is_free
from pof.train.histogram import weight_histogram
from pof.train.origin import RECORDS
from pof.train.records import Records
from pof.train.run import WEIGHTS, run_recipe

ASSUMED = 400.0
"""Images a second, forward and backward, of a ResNet-20 on two slow cores: until a run here has told better."""


@dataclass(frozen=True)
class Places:
    """Where runs and records are."""

    runs: Path
    results: Path

    def record(self, experiment: Experiment) -> Path:
        """The file of an experiment's record."""
        return self.results / f"{experiment.name}.json"


def is_done(experiment: Experiment, places: Places) -> bool:
    """Whether there is a record of it, of the same recipe."""
    try:
        found = json.loads(places.record(experiment).read_text())
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise PofError(f"cannot read {str(places.record(experiment))!r}: {error}") from None
    return isinstance(found, dict) and found.get("recipe_hash") == experiment.recipe.hash


def seconds_left(experiments: Sequence[Experiment], places: Places) -> dict[str, float]:
    """How long each that is not done will take, by how fast runs here were, or a guess."""
    speeds = [
        line["images_per_second"] * experiment.passes * COST.get(experiment.recipe.model.name, 1.0)
        for experiment in experiments
        for line in Records(places.runs / experiment.name / RECORDS).read()
        if line["kind"] == "epoch"
    ]
    speed = sorted(speeds)[len(speeds) // 2] if speeds else ASSUMED
    return {e.name: e.work / speed for e in experiments if not is_done(e, places)}


def reproduce(
    experiments: Sequence[Experiment],
    places: Places,
    began: Callable[[Experiment], Show],
    skipped: Callable[[Experiment, str], None],
) -> bool:
    """Run what is not done; return whether all of it is now. What another process runs, or waits for, is skipped."""
    finished = {experiment.name for experiment in experiments if is_done(experiment, places)}
    for experiment in experiments:
        if experiment.name in finished:
            continue
        folder = places.runs / experiment.name
        if experiment.after and not (places.runs / experiment.after / "model.safetensors").exists():
            skipped(experiment, f"it starts from {experiment.after}, which has not finished")
        elif not is_free(folder):
            skipped(experiment, "another process is running it")
        elif run_recipe(experiment.recipe, folder, began(experiment)).finished:
            _keep(experiment, places)
            finished.add(experiment.name)
        else:
            return False
    return len(finished) == len(experiments)


def _keep(experiment: Experiment, places: Places) -> None:
    """Write the record of a run that finished."""
    lines = Records(places.runs / experiment.name / RECORDS).read()
    first = next(line for line in lines if line["kind"] in ("start", "resume"))
    final: dict[str, Any] = next(line for line in reversed(lines) if line["kind"] == "final")
    record = {
        **{key: getattr(experiment, key) for key in ("name", "table", "label", "passes", "after", "sparsity")},
        **{key: first[key] for key in ("recipe", "recipe_hash", "versions", "machine")},
        "resumed": sum(line["kind"] == "resume" for line in lines),
        **{key: final[key] for key in ("step", "accuracy", "test_images", "figures")},
        "states": final["table"],
        "histogram": weight_histogram(places.runs / experiment.name / WEIGHTS),
    }
    places.results.mkdir(parents=True, exist_ok=True)
    with replacing(places.record(experiment)) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")
