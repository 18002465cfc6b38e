"""Write one page that shows trained networks: curves, weights, file, speed.

RUN is a run's folder or a file of weights. A run was tested when it ended; for
a file, --test measures accuracies. The page is self-contained: open it in any
browser. Its sliders show what is zero, filled and kept.

example: pof report runs/digits-pof-0 runs/digits-dense-0 -o report.html
"""

import argparse
import json
from pathlib import Path

from pof.errors import PofError

HELP = "write a page that shows trained networks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof report`."""
    parser.add_argument("sources", metavar="RUN", nargs="+", help="a run's folder, or a file of weights")
    parser.add_argument("-o", "--out", metavar="FILE", default="report.html", help="page to write (report.html)")
    parser.add_argument("--model", metavar="NAME", help="model name or MODULE:FUNCTION, for files that do not say")
    parser.add_argument("--data", metavar="NAME", help="dataset to test on, for files that do not say")
    parser.add_argument("--test", action="store_true", help="test untested networks on all test images (takes minutes)")
    parser.add_argument("--no-speed", action="store_true", help="do not time the layers")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON, and write no page")


def run(options: argparse.Namespace) -> int:
    """Gather the facts and write the page."""
    if options.data and not options.test:
        raise PofError(f"--data {options.data} names the images to test on: give --test too")
    from pof.core.library import core
    from pof.file.atomic_write import check_target
    from pof.report.page import ENDINGS, write_page
    from pof.report.run_facts import portrait_of
    from pof.terminal.progress_bars import Bars
    from pof.trainer.kept_heap import keep_freed_memory

    out = check_target(options.out, ENDINGS)
    speed = not options.no_speed and core() is not None
    how = {"model": options.model, "data": options.data, "speed": speed}
    if options.test:
        keep_freed_memory()
    with Bars() as bars:
        test = bars.update if options.test else None
        runs = [portrait_of(source, **how, test=test) for source in options.sources]
    if options.json:
        print(json.dumps(runs))
        return 0
    names = ", ".join(Path(source).name for source in options.sources)
    page = write_page(out, f"pof: {names}", "Recoverable pruning: one network at every sparsity.", runs)
    print(f"{page}: open it in a browser")
    return 0
