"""Test a trained network over sparsities and bands.

Prints one row per state: its accuracy with the BatchNorm statistics as trained,
and with its own: estimated ones, or those that a .pof file keeps.

example: pof sweep runs/digits-pof-0
"""

import argparse
import json
from typing import TYPE_CHECKING, Any

from pof.cli import trained_options as trained
from pof.errors import PofError

if TYPE_CHECKING:
    from pof.ranking.sparsity_state import State
    from pof.trainer.recipe import TableRecipe

HELP = "test a trained network over sparsities and bands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof sweep`."""
    trained.add_arguments(parser)
    parser.add_argument(
        "--sparsities", metavar="S", nargs="*", help="sparsities to test, such as 0.5 0.8 (the recipe's)"
    )
    parser.add_argument("--bands", metavar="S1-S2", nargs="*", help="bands to test, such as 0.3-0.7 (the recipe's)")


def run(options: argparse.Namespace) -> int:
    """Evaluate all states and print the table."""
    found = trained.load(options)
    from pof.report.accuracies import ESTIMATED, OF_THE_FILE, accuracy_table
    from pof.terminal.progress_bars import Bars
    from pof.trainer.trained import sweep_stored

    states, rows = _states(options, found.recipe.table), list[dict[str, Any]]()
    statistics, results = sweep_stored(found, trained.file_as_stored(options), states)
    with Bars() as bars:
        for result in results:
            rows.append(result.as_record())
            bars.update("sweep", len(rows), len(states), str(result.state))
    if options.json:
        figures = {"test_images": found.data.test_images, "statistics": "file" if statistics == "kept" else statistics}
        print(json.dumps({**figures, "rows": rows}, indent=2))
        return 0
    print(accuracy_table(rows, found.data.test_images, OF_THE_FILE if statistics == "kept" else ESTIMATED))
    return 0


def _states(options: argparse.Namespace, table: "TableRecipe") -> "tuple[State, ...]":
    """Return the states that are asked for, or those of the recipe."""
    if options.sparsities is None and options.bands is None:
        return table.states()
    from pof.trainer.recipe import TableRecipe

    try:
        bands = [tuple(float(end) for end in band.split("-")) for band in options.bands or ()]
    except ValueError:
        bands = [()]
    if any(len(band) != 2 for band in bands):
        raise PofError(f"--bands {' '.join(options.bands)} must be pairs, such as 0.3-0.7 0.5-0.9")
    pairs = tuple((low, high) for low, high in bands)
    parts = [part for word in options.sparsities or () for part in word.split(",") if part.strip()]
    try:
        sparsities = tuple(map(float, parts))
    except ValueError:
        raise PofError(f"--sparsities {' '.join(options.sparsities)} must be numbers, such as 0.5 0.8") from None
    if not sparsities and not pairs:
        raise PofError("nothing to test: give --sparsities, such as 0.5 0.8, or --bands, such as 0.3-0.7")
    return TableRecipe(sparsities=sparsities, bands=pairs).states()
