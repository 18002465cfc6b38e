"""Test a trained network over sparsities and bands.

A row a state, as trained and with BatchNorm statistics re-estimated.

example: pof sweep runs/digits-pof-0
"""

import argparse
import json
import sys

from pof.cli import trained

HELP = "test a trained network over sparsities and bands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof sweep`."""
    trained.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Evaluate all states and print the table."""
    found = trained.load(options)
    from pof.cli.progress import Bars
    from pof.train.evaluate import STATES, sweep

    results = []
    with Bars() as bars:
        for result in sweep(found.model, found.elastic, found.data):
            results.append(result)
            bars.update("sweep", len(results), len(STATES), str(result.state))
    if options.json:
        rows = [
            {**r.state._asdict(), "zeros": r.zeros, "accuracy": r.plain, "calibrated": r.calibrated} for r in results
        ]
        print(json.dumps({"test_images": found.data.test_images, "rows": rows}, indent=2))
        return 0
    from pof.table import text_table

    header = ("state", "zeros", "accuracy, %", "new statistics")
    print(text_table(header, [_row(r.state, r.zeros, r.plain, r.calibrated) for r in results]))
    print(f"on {found.data.test_images} test images; nothing was trained", file=sys.stderr)
    return 0


def _row(state: object, zeros: float, plain: float, calibrated: float | None) -> tuple[str, str, str, str]:
    new = "" if calibrated is None else f"{100 * calibrated:.2f}"
    return str(state), f"{100 * zeros:.1f} %", f"{100 * plain:.2f}", new
