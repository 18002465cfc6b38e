"""Show what pof does: one file of a CIFAR-10 network, at every size.

Prunes and recovers a network that ships with pof, without training, and
compares it with plain magnitude pruning: accuracy on 2,000 test images, bytes
read and speed. Then it writes a page with sliders.

example: pof demo --page report.html
"""

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING

from pof.errors import PofError

if TYPE_CHECKING:
    from pof.report.cifar10_demo import DemoResult

PAGE = "pof-demo.html"
HELP = "show what pof does, in about a minute"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof demo`."""
    parser.add_argument("--page", metavar="FILE", help=f"where to write the page ({PAGE})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Run the demo and show its results."""
    if options.json and options.page:
        raise PofError("--json prints figures and draws nothing: leave --page out")
    from pof.file.atomic_write import check_target
    from pof.report.page import ENDINGS, write_page

    start = time.perf_counter()
    page = check_target(options.page or PAGE, ENDINGS)
    if not options.json:
        print("Loading torch ...", file=sys.stderr)
    from pof.report.cifar10_demo import run_demo
    from pof.terminal.progress_bars import Bars

    if options.json:
        print(json.dumps(run_demo().as_dict(), indent=2))
        return 0
    with Bars() as bars:
        result = run_demo(bars.update)
    _print(result)
    about = (
        f"The networks that ship with pof, on {result.test_images:,} CIFAR-10 test images; statistics from the files."
    )
    print(f"Page with sliders: {write_page(page, 'pof demo: one file, every size', about, result.pages)}")
    print(f"{time.perf_counter() - start:.0f} s in all")
    return 0


def _print(result: "DemoResult") -> None:
    """Print one row per sparsity, and what the columns mean."""
    from pof.terminal.text_table import text_table

    header = ("sparsity", "plain", "pof", "bytes", "speed", "+band", "bytes", "speed")
    rows = []
    for row in result.rows:
        pruned = (f"{100 * row.plain:.1f}", f"{100 * row.pruned:.1f}", f"{row.bytes:,}", _times(row.speedup))
        band = ("", "", "")
        if row.recovered is not None:
            band = (f"{100 * row.recovered:.1f}", f"{row.recovered_bytes:,}", _times(row.recovered_speedup))
        rows.append((f"{row.sparsity:.0%}", *pruned, *band))
    print("ResNet-20 on CIFAR-10, test accuracy in %")
    print(text_table(header, rows, right=True))
    print(f"Nothing was trained: one file of {result.file_bytes:,} bytes ({result.dense_bytes:,} as float32) holds")
    print(f"every size. {result.test_images:,} test images; BatchNorm statistics are those in the files.")
    print("plain: trained without regard to pruning, then pruned by magnitude")
    print("pof:   trained with the method nested, then pruned; bytes: read from the file")
    print("+band: the band from 50 % (in the row of 50 %: from 30 %) is alpha*sign(w)")
    print("speed: pof.compile against torch (BatchNorm not folded), 16 images, one thread")


def _times(speedup: float | None) -> str:
    return "" if speedup is None else f"{speedup:.2f}x"
