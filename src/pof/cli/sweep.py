"""Test a trained network over sparsities and bands.

A row a state, as trained and with BatchNorm statistics re-estimated.

example: pof sweep runs/digits-pof-0
"""

import argparse
import json

from pof.cli import trained

HELP = "test a trained network over sparsities and bands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof sweep`."""
    trained.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Evaluate all states and print the table."""
    found = trained.load(options)
    from pof.cli.progress import Bars
    from pof.report.accuracies import accuracy_table
    from pof.train.evaluate import sweep

    states, rows = found.recipe.table.states(), []
    with Bars() as bars:
        for result in sweep(found.model, found.elastic, found.data, states):
            rows.append(result.as_record())
            bars.update("sweep", len(rows), len(states), str(result.state))
    if options.json:
        print(json.dumps({"test_images": found.data.test_images, "rows": rows}, indent=2))
        return 0
    print(accuracy_table(rows, found.data.test_images))
    return 0
