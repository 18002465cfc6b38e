"""Run the whole method on handwritten digits, in under a minute.

Trains a small convnet, fine-tunes one copy plainly and one with pof, prunes
and recovers both without further training, prints the accuracies and plots
them.

example: pof demo --plot digits.png
"""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from pof.errors import PofError

if TYPE_CHECKING:
    from pof.demo import DemoResult

PLOT = "pof-demo.png"
HELP = "run the whole method on handwritten digits, in under a minute"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof demo`."""
    parser.add_argument("--plot", metavar="FILE", help=f"where to draw the plot ({PLOT})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Run the demo and show what came out."""
    from pof.report.plots import can_plot, check_plot_path

    start = time.perf_counter()
    if options.json and options.plot:
        raise PofError("--json prints figures and draws nothing: leave --plot out")
    plot = check_plot_path(options.plot or PLOT)
    if options.json:
        from pof.demo import run_demo

        print(json.dumps(run_demo().as_dict(), indent=2))
        return 0
    print("Loading torch ...", file=sys.stderr)
    from pof.cli.progress import Bars
    from pof.demo import run_demo

    with Bars() as bars:
        result = run_demo(progress=bars.update)
    print_table(result)
    print(f"Pruned, nothing trained afterwards; accuracy on {result.test_images} test images.")
    print("+band:  30 % are zero, and from there to the ratio alpha*sign(w) is filled in")
    print("+stats: BatchNorm statistics re-estimated from training images, no labels")
    print(f"Plot: {draw(result, str(plot))}" if can_plot() else "No plot: pip install matplotlib draws one")
    print(f"{time.perf_counter() - start:.0f} s in all")
    return 0


def print_table(result: "DemoResult") -> None:
    """A row a sparsity, both networks side by side."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Test accuracy, % (plain fine-tuning against pof)", title_justify="left")
    for name in ("ratio", "plain", "plain +band", "plain +stats", "pof", "pof +band", "pof +stats"):
        table.add_column(name, justify="right", style="bold" if name == "pof" else None)
    for plain, ours in zip(
        *([row for row in result.rows if row.network == name] for name in ("plain", "pof")), strict=True
    ):
        figures = (plain.pruned, plain.recovered, plain.calibrated, ours.pruned, ours.recovered, ours.calibrated)
        table.add_row(f"{plain.sparsity:.0%}", *(f"{100 * figure:.1f}" for figure in figures))
    Console().print(table)


def draw(result: "DemoResult", path: str) -> str:
    """The plot of the four curves."""
    from pof.report.plots import Curve, plot_accuracy

    curves = {
        "pof, pruned": Curve(result.curve("pof", "pruned"), "tab:blue"),
        "pof, 30 % pruned, the rest of the ratio filled": Curve(result.curve("pof", "recovered"), "tab:blue", True),
        "plain, pruned": Curve(result.curve("plain", "pruned"), "tab:orange"),
        "plain, 30 % pruned, the rest filled": Curve(result.curve("plain", "recovered"), "tab:orange", True),
    }
    return str(plot_accuracy(curves, "Digits: pruned without retraining", path))
