"""Runs experiments one after the other, skips those that are done, and keeps a small record of each."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.command_line import LAB
from lab.experiments import COST, Experiment
from lab.weight_histogram import weight_histogram
from pof.errors import PofError
from pof.file.atomic_write import replacing
from pof.trainer.events import Show
from pof.trainer.recipe import is_of
from pof.trainer.run import CHECKPOINT, WEIGHTS, Outcome, run_recipe
from pof.trainer.run_folder import BusyError, is_free
from pof.trainer.run_origin import RECORDS
from pof.trainer.run_records import Records

ASSUMED = 600.0
"""Images per second, forward and backward, of a ResNet-20 on two slow cores: a guess until a run here is timed."""
BUSY = "another process is running it"


@dataclass(frozen=True)
class Places:
    """Where runs and records are."""

    runs: Path
    results: Path
    files: Path = LAB
    """The folder that paths of files in recipes are relative to."""

    def folder(self, experiment: Experiment) -> Path:
        """Return the folder of an experiment's run."""
        return self.runs / experiment.name

    def start(self, experiment: Experiment) -> Path | None:
        """Return the path of the weights that an experiment starts from, if any."""
        if experiment.after:
            return self.runs / experiment.after
        return self.files / experiment.recipe.model.weights if experiment.recipe.model.weights else None

    def record(self, experiment: Experiment) -> Path:
        """Return the file of an experiment's record."""
        return self.results / f"{experiment.name}.json"


def is_done(experiment: Experiment, places: Places) -> bool:
    """Whether it has a record, of the same recipe, with everything that records hold today."""
    path = places.record(experiment)
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PofError(f"cannot read the record {str(path)!r} ({reason}): delete it to run it again") from None
    return isinstance(found, dict) and "histogram" in found and is_of(experiment.recipe, found.get("recipe"))


def to_run(experiments: Sequence[Experiment], places: Places) -> list[Experiment]:
    """Return the experiments that are not done, and those that are done but whose missing weights another one needs.

    A clone lacks such weights: it has the records of runs, not their folders.
    """
    found: list[Experiment] = []
    needed: set[str] = set()
    for experiment in reversed(experiments):
        lost = experiment.name in needed and not (places.folder(experiment) / WEIGHTS).exists()
        if lost or not is_done(experiment, places):
            found.append(experiment)
            needed |= {experiment.after} if _is_new(experiment, places) else set()
    return found[::-1]


def check_starts(experiments: Sequence[Experiment], places: Places) -> None:
    """Raise if one of them starts from a file of the repository that is missing."""
    for experiment in experiments:
        file = places.start(experiment)
        if file is not None and not experiment.after and _is_new(experiment, places) and not file.exists():
            raise PofError(
                f"there is no {str(file)!r}, which {experiment.name} starts from: clone the whole repository"
            )


def seconds_left(experiments: Sequence[Experiment], places: Places) -> dict[str, float]:
    """Estimate how long each experiment that is to run will take, by the speed of earlier runs here, or a guess."""
    lines = {experiment.name: _lines(experiment, places) for experiment in experiments}
    speeds = sorted(
        line["images_per_second"] * experiment.passes * COST.get(experiment.recipe.model.name, 1.0)
        for experiment in experiments
        for line in lines[experiment.name]
        if line["kind"] == "epoch" and "images_per_second" in line
    )
    speed = speeds[len(speeds) // 2] if speeds else ASSUMED
    # For a run that has finished, only the record has to be written.
    ended = {name for name, found in lines.items() if any(line["kind"] == "final" for line in found)}
    return {e.name: 0.0 if e.name in ended else e.work / speed for e in to_run(experiments, places)}


def reproduce(
    experiments: Sequence[Experiment],
    places: Places,
    began: Callable[[Experiment], Show],
    skipped: Callable[[Experiment, str], None],
    ended: Callable[[Experiment, Outcome], None] = lambda *_: None,
) -> bool:
    """Run what is to be run; return whether all is done now.

    What another process runs is skipped, and so is what starts from it. Recipes name the default folders of the runs
    that they start from; `places` has the real ones.
    """
    for experiment in to_run(experiments, places):
        hindrance = _hindrance(experiment, places)
        if not hindrance:
            try:
                where = (places.folder(experiment), began(experiment), places.start(experiment))
                outcome = run_recipe(experiment.recipe, *where)
            except BusyError:
                hindrance = BUSY  # another process took it a moment ago
        if hindrance:
            skipped(experiment, hindrance)
            continue
        if outcome.finished:
            _keep(experiment, places)
        ended(experiment, outcome)
        if not outcome.finished:
            return False
    return not to_run(experiments, places)  # another process may have finished what was skipped


def _is_new(experiment: Experiment, places: Places) -> bool:
    """Whether it still has to load the weights that it starts from."""
    return not any((places.folder(experiment) / file).exists() for file in (CHECKPOINT, WEIGHTS))


def _hindrance(experiment: Experiment, places: Places) -> str:
    """Return why it cannot run now; empty if it can."""
    if experiment.after and _is_new(experiment, places) and not (places.runs / experiment.after / WEIGHTS).exists():
        return f"it starts from {experiment.after}, which has not finished"
    if not is_free(places.folder(experiment)):
        return BUSY
    try:
        if _is_foreign(experiment, places):
            return (
                f"{str(places.folder(experiment))!r} holds a run of another recipe: delete it, or choose another --runs"
            )
    except PofError as error:
        return str(error)  # the others can still run
    return ""


def _is_foreign(experiment: Experiment, places: Places) -> bool:
    """Whether its folder holds a run of something else."""
    origin = Records(places.folder(experiment) / RECORDS).origin()
    return origin is not None and not is_of(experiment.recipe, origin["recipe"])


def _lines(experiment: Experiment, places: Places) -> list[dict[str, Any]]:
    """Return what its run has recorded; nothing if unreadable or of another recipe, which is reported in its turn."""
    try:
        return [] if _is_foreign(experiment, places) else Records(places.folder(experiment) / RECORDS).read()
    except PofError:
        return []


def _keep(experiment: Experiment, places: Places) -> None:
    """Write the record of a finished run."""
    lines = Records(places.folder(experiment) / RECORDS).read()
    first = next(line for line in lines if line["kind"] in ("start", "resume"))
    final: dict[str, Any] = next(line for line in reversed(lines) if line["kind"] == "final")
    record = {
        **{key: getattr(experiment, key) for key in ("name", "table", "label", "passes", "after", "sparsity")},
        **{key: first[key] for key in ("recipe", "recipe_hash", "versions", "machine")},
        "resumed": sum(line["kind"] == "resume" for line in lines),
        **{key: final[key] for key in ("step", "accuracy", "test_images", "figures")},
        "states": final["table"],
        "histogram": weight_histogram(places.folder(experiment) / WEIGHTS),
    }
    places.results.mkdir(parents=True, exist_ok=True)
    with replacing(places.record(experiment)) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")
