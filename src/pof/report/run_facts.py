"""The facts of a run or of a file of weights, for the report page."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch

from pof.file.locations import is_remote, local, suffix_of
from pof.file.pof_file import PofFile
from pof.ranking.sparsity_state import Magnitudes, Scope
from pof.report.network_facts import Facts, described, times_of
from pof.trainer.accuracy_sweep import Statistics
from pof.trainer.from_recipe import weights_facts
from pof.trainer.recipe import TableRecipe
from pof.trainer.run_origin import RECORDS
from pof.trainer.run_records import Records
from pof.trainer.trained import load_at, load_trained, recipe_of, sweep_stored
from pof.trainer.weight_files import facts_of

Progress = Callable[[str, int, int], None]
"""Called with the name of a network, the number of its states tested so far, and their total."""


def portrait_of(
    source: str | Path,
    *,
    model: str | None = None,
    data: str | None = None,
    speed: bool = True,
    test: Progress | None = None,
) -> Facts:
    """Gather the facts of a run's folder or a file of weights, for `pof.report.page`.

    Accuracies come from a run's own table. If there is none and `test` is given, they are measured, on the dataset that
    the file names or on `data`, and `test` is told of the progress.
    """
    found = load_at(source, model)
    path = Path(str(local(source)).partition("?")[0])
    is_run = not is_remote(source) and path.is_dir()
    records = Records(path / RECORDS) if is_run else None
    recipe = recipe_of(path) if is_run else None
    facts = facts_of(source) if recipe is None else weights_facts(recipe)
    final = records.last("final") if records is not None else None
    magnitudes = cast(Magnitudes, facts.get("magnitudes", "raw"))
    scope = cast(Scope, facts.get("scope", "layer"))
    example = torch.randn(1, found.channels, found.size, found.size)
    about = described(found.model, magnitudes, source if suffix_of(source) == ".pof" else None, scope)
    name = path.stem if recipe is None else path.name
    rows, test_images = ([], None) if final is None else (final["table"], final["test_images"])
    if rows and recipe is not None and recipe.data.hold_out:
        name += " (held-out images)"
    elif not rows and test is not None:
        statistics, rows, test_images = _tested(source, model, data, lambda done, states: test(name, done, states))
        if about["statistics"]:
            about["statistics"] = "file" if statistics == "kept" else statistics
    return {
        "name": name,
        "rows": rows,
        "test_images": test_images,
        **about,
        "training": [] if records is None else training_of(records),
        "times": times_of(found.model, example, magnitudes, scope=scope) if speed else None,
    }


def _tested(
    source: str | Path, model: str | None, data: str | None, progress: Callable[[int, int], None]
) -> tuple[Statistics, list[Facts], int]:
    """Test a network in the states of its recipe, or else of the default one, as `pof sweep` does."""
    found = load_trained(source, model=model, data=data)
    file = PofFile(source) if suffix_of(source) == ".pof" else None
    states = found.recipe.table.states() or TableRecipe().states()
    statistics, results = sweep_stored(found, file, states)
    rows: list[Facts] = []
    for result in results:
        rows.append(result.as_record())
        progress(len(rows), len(states))
    return statistics, rows, found.data.test_images


def training_of(records: Records) -> list[Facts]:
    """Return the loss and, if tested, the accuracy after each epoch; for a resumed epoch, the last record."""
    found: dict[int, Facts] = {}
    for line in records.read():
        if line["kind"] == "epoch":
            found[line["epoch"]] = {"epoch": line["epoch"], "loss": line["loss"], "accuracy": None}
        elif line["kind"] == "evaluation":
            found[line["epoch"]]["accuracy"] = line["accuracy"]
        elif line["kind"] == "final" and found:
            found[max(found)]["accuracy"] = line["accuracy"]
    return [found[epoch] for epoch in sorted(found)]
