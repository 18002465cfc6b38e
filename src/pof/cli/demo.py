"""Show what pof does: one file of a CIFAR-10 network, at every size.

Prunes and recovers a network that comes with pof, without training, and
compares it with plain magnitude pruning: accuracy on 2,000 test images, bytes
of the file, speed. Then writes a page with sliders. `pof demo digits` trains
small networks on handwritten digits instead.

example: pof demo --page report.html
"""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from pof.errors import PofError

if TYPE_CHECKING:
    from pof import cifar10_demo, digits_demo

PAGE, PLOT = "pof-demo.html", "pof-demo.png"
HELP = "show what pof does, in about a minute"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof demo`."""
    parser.add_argument("which", nargs="?", choices=("cifar10", "digits"), default="cifar10", help="cifar10, or digits")
    parser.add_argument("--page", metavar="FILE", help=f"cifar10: where to write the page ({PAGE})")
    parser.add_argument("--plot", metavar="FILE", help=f"digits: where to draw the plot ({PLOT})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Run the demo and show what came out."""
    if options.json and (options.plot or options.page):
        raise PofError("--json prints figures and draws nothing: leave --plot and --page out")
    if options.plot and options.which != "digits":
        raise PofError("--plot is of the digits: pof demo digits --plot FILE")
    if options.page and options.which == "digits":
        raise PofError("--page is of CIFAR-10: pof demo --page FILE")
    start = time.perf_counter()
    code = _digits(options) if options.which == "digits" else _cifar10(options)
    if not options.json:
        print(f"{time.perf_counter() - start:.0f} s in all")
    return code


def _cifar10(options: argparse.Namespace) -> int:
    from pof.replacing import check_target
    from pof.report.page import ENDINGS, write_page

    page = check_target(options.page or PAGE, ENDINGS)
    if not options.json:
        print("Loading torch ...", file=sys.stderr)
    from pof.cifar10_demo import run_demo
    from pof.cli.progress import Bars

    if options.json:
        print(json.dumps(run_demo().as_dict(), indent=2))
        return 0
    with Bars() as bars:
        result = run_demo(bars.update)
    _print_cifar10(result)
    about = f"The networks that come with pof; {result.test_images:,} CIFAR-10 test images, statistics from the files."
    print(f"Page with sliders: {write_page(page, 'pof demo: one file, every size', about, result.pages)}")
    return 0


def _print_cifar10(result: "cifar10_demo.DemoResult") -> None:
    """A row a sparsity."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="ResNet-20 on CIFAR-10, test accuracy in %", title_justify="left")
    for name in ("sparsity", "plain", "pof", "bytes", "speed", "+band", "bytes", "speed"):
        table.add_column(name, justify="right", style="bold" if name == "pof" else None)
    for row in result.rows:
        pruned = (f"{100 * row.plain:.1f}", f"{100 * row.pruned:.1f}", f"{row.bytes:,}", _times(row.speedup))
        band = ("", "", "")
        if row.recovered is not None:
            band = (f"{100 * row.recovered:.1f}", f"{row.recovered_bytes:,}", _times(row.recovered_speedup))
        table.add_row(f"{row.sparsity:.0%}", *pruned, *band)
    Console().print(table)
    print(f"Nothing was trained: one file of {result.file_bytes:,} bytes ({result.dense_bytes:,} as float32) holds")
    print(f"all of it. {result.test_images:,} test images; BatchNorm statistics are those in the files.")
    print("plain: trained without regard to pruning, pruned by magnitude")
    print("pof:   trained with the method nested, pruned; bytes: what is read of the file")
    print("+band: from 50 % on (row of 50 %: from 30 % on) filled with alpha*sign(w)")
    print("speed: pof.compile against torch (BatchNorm not folded), 16 images, one thread")


def _times(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.2f}x"


def _digits(options: argparse.Namespace) -> int:
    from pof.replacing import check_target
    from pof.report.plots import SUFFIXES, can_plot

    plot = check_target(options.plot or PLOT, SUFFIXES)
    if options.json:
        from pof.digits_demo import run_demo

        print(json.dumps(run_demo().as_dict(), indent=2))
        return 0
    print("Loading torch ...", file=sys.stderr)
    from pof.cli.progress import Bars
    from pof.digits_demo import run_demo

    with Bars() as bars:
        result = run_demo(progress=bars.update)
    print_table(result)
    print(f"Pruned, nothing trained afterwards; accuracy on {result.test_images} test images.")
    print("+band:  30 % are zero, and from there to the ratio alpha*sign(w) is filled in")
    print("+stats: BatchNorm statistics re-estimated from training images, no labels")
    print(f"Plot: {draw(result, str(plot))}" if can_plot() else "No plot: pip install matplotlib draws one")
    return 0


def print_table(result: "digits_demo.DemoResult") -> None:
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


def draw(result: "digits_demo.DemoResult", path: str) -> str:
    """The plot of the four curves."""
    from pof.report.plots import Curve, plot_accuracy

    curves = {
        "pof, pruned": Curve(result.curve("pof", "pruned"), "tab:blue"),
        "pof, 30 % pruned, the rest of the ratio filled": Curve(result.curve("pof", "recovered"), "tab:blue", True),
        "plain, pruned": Curve(result.curve("plain", "pruned"), "tab:orange"),
        "plain, 30 % pruned, the rest filled": Curve(result.curve("plain", "recovered"), "tab:orange", True),
    }
    return str(plot_accuracy(curves, "Digits: pruned without retraining", path))
