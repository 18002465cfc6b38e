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

if TYPE_CHECKING:
    from pof.demo import DemoResult

HELP = "run the whole method on handwritten digits, in under a minute"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof demo`."""
    parser.add_argument("--plot", metavar="FILE", default="pof-demo.png", help="where to draw the plot (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> None:
    """Run the demo and show what came out."""
    start = time.perf_counter()
    if options.json:
        from pof.demo import run_demo

        print(json.dumps(run_demo().as_dict(), indent=2))
        return
    print("Loading torch ...", file=sys.stderr)
    from pof.demo import run_demo

    with _Bars() as bars:
        result = run_demo(progress=bars.update)
    print_table(result)
    print(f"Accuracy on {result.test_images} test images. Nothing was trained after pruning.")
    print("recovered = the band from 30 % to the sparsity is filled with alpha*sign(w)")
    print("new stats = BatchNorm statistics re-estimated from training images, no labels")
    from pof.report.plots import can_plot

    print(f"Plot: {draw(result, options.plot)}" if can_plot() else "No plot: pip install 'pof[plot]' draws one")
    print(f"{time.perf_counter() - start:.0f} s in all")


def print_table(result: "DemoResult") -> None:
    """A row a sparsity, both networks side by side."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Test accuracy, % (plain fine-tuning against pof)", title_justify="left")
    for name in ("sparsity", "plain", "recovered", "new stats", "pof", "recovered", "new stats"):
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
        "pof, recovered": Curve(result.curve("pof", "recovered"), "tab:blue", dashed=True),
        "plain, pruned": Curve(result.curve("plain", "pruned"), "tab:orange"),
        "plain, recovered": Curve(result.curve("plain", "recovered"), "tab:orange", dashed=True),
    }
    return str(plot_accuracy(curves, "Digits: pruned without retraining", path))


class _Bars:
    """A progress bar a stage; plain lines where there is no terminal."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        self._live = console.is_terminal
        self._tasks: dict[str, int] = {}
        columns = (TextColumn("{task.description:<20}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, disable=not self._live)

    def __enter__(self) -> "_Bars":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, title: str, done: int, steps: int) -> None:
        """Show that `done` of `steps` are done."""
        if title not in self._tasks:
            self._tasks[title] = self._progress.add_task(title, total=steps)
            if not self._live:
                print(f"{title} ({steps} steps)", file=sys.stderr)
        self._progress.update(self._tasks[title], completed=done)  # type: ignore[arg-type]
