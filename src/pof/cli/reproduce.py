"""Make the tables of docs/results.md again, on CIFAR-10.

Shows what is to be run and how long it will take, then runs it. Stop it at any
time: the same command goes on from there, and skips what is done. Two of them,
in two terminals, share the work.

example: pof reproduce instant --budget quick
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pof.errors import PofError

if TYPE_CHECKING:
    from pof.train.events import Show
    from pof.train.experiments import Experiment

TABLES = ("every_size", "instant", "fine_tuned", "weights", "mobilenet", "all")
HELP = "make the tables of docs/results.md again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof reproduce`."""
    parser.add_argument("table", metavar="TABLE", choices=TABLES, help=", ".join(TABLES))
    parser.add_argument("--budget", choices=("quick", "full"), default="quick", help="how long the runs are (quick)")
    parser.add_argument("--plan", action="store_true", help="only show what is to be run")
    parser.add_argument("--runs", metavar="DIR", default="runs", help="folder of the runs (runs)")
    parser.add_argument("--results", metavar="DIR", default="results/cifar10", help="folder of the records")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Show the plan, and run it."""
    try:
        from pof.train.experiments import experiments
        from pof.train.heap import keep_freed_memory
        from pof.train.reproduce import Places, reproduce, seconds_left
    except ModuleNotFoundError as error:
        raise PofError(f"training needs {error.name}: pip install {error.name}") from None
    places = Places(Path(options.runs), Path(options.results))
    every = experiments(options.budget, options.runs)
    chosen = [e for e in every if options.table in ("all", e.table)]
    # What they start from, of other tables too, comes with them.
    wanted = {e.name for e in chosen} | {e.after for e in chosen}
    chosen = [e for e in every if e.name in wanted]
    left = seconds_left(chosen, places)
    if options.json:
        plan = [{"name": e.name, "done": e.name not in left, "seconds": left.get(e.name, 0)} for e in chosen]
        print(json.dumps(plan))
        return 0
    print(_plan(chosen, left))
    if options.plan:
        return 0
    from pof.cli.train import Display

    keep_freed_memory()

    def began(experiment: "Experiment") -> "Show":
        print(f"{experiment.name} ({experiment.label or 'for others to start from'})")
        return Display(experiment.name).show

    def skipped(experiment: "Experiment", why: str) -> None:
        print(f"{experiment.name}: left out, {why}", file=sys.stderr)

    done = reproduce(chosen, places, began, skipped)
    print("all done: python -m pof.report.results writes docs/results.md" if done else "not all done yet")
    return 0 if done else 130


def _plan(chosen: "list[Experiment]", left: dict[str, float]) -> str:
    from pof.table import text_table

    rows = [
        (e.name, e.table, e.recipe.run.epochs, e.passes, _time(left[e.name]) if e.name in left else "done")
        for e in chosen
    ]
    total = f"{len(chosen) - len(left)} of {len(chosen)} done; about {_time(sum(left.values()))} left"
    return f"{text_table(('run', 'table', 'epochs', 'passes', 'time'), rows)}\n{total}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"
