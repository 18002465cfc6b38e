"""Reproduce the tables of docs/results.md, on CIFAR-10.

Shows what is to be run and how long it will take, then runs it. Stop it at any
time: the same command resumes from there and skips what is done. Run it in two
terminals to share the work.

example: python -m lab.reproduce instant --budget quick
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from lab.command_line import LAB, run_command
from lab.experiments import Experiment, experiments
from lab.run_experiments import Places, check_starts, reproduce, seconds_left, to_run
from pof.cli.train_verb import Display
from pof.terminal.text_table import text_table
from pof.trainer.events import Show
from pof.trainer.kept_heap import keep_freed_memory
from pof.trainer.run import Outcome

TABLES = ("every_size", "instant", "fine_tuned", "weights", "mobilenet", "all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("table", metavar="TABLE", choices=TABLES, help=", ".join(TABLES))
    parser.add_argument("--budget", choices=("quick", "full"), default="quick", help="how long the runs are (quick)")
    parser.add_argument("--plan", action="store_true", help="only show what is to be run")
    parser.add_argument("--runs", metavar="DIR", default="runs", help="folder of the runs (runs)")
    parser.add_argument("--results", metavar="DIR", default=str(LAB / "records/cifar10"), help="folder of the records")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Show the plan, and run it."""
    places = Places(Path(options.runs), Path(options.results))
    chosen = _chosen(experiments(options.budget), options.table)
    left = seconds_left(chosen, places)
    if options.json:
        plan = [{"name": e.name, "done": e.name not in left, "seconds": left.get(e.name, 0)} for e in chosen]
        print(json.dumps(plan))
        return 0
    if not options.plan:
        check_starts(to_run(chosen, places), places)
    print(_plan(chosen, left), flush=True)
    if options.plan:
        return 0
    keep_freed_memory()
    with _Screen() as screen:
        try:
            done = reproduce(chosen, places, screen.began, screen.skipped, screen.ended)
        except KeyboardInterrupt:
            screen.interrupted = True
            done = False
    if screen.interrupted:
        print("stopped; the same command resumes from there")
    elif done:
        print("all done: python -m lab.results_page writes docs/results.md")
    else:
        print("not all done yet: the same command runs what is left")
    return 0 if done else 130


class _Screen:
    """Shows one run after the other, each with a bar of its own."""

    def __init__(self) -> None:
        self.interrupted = False
        self._open = ExitStack()

    def __enter__(self) -> "_Screen":
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def began(self, experiment: Experiment) -> Show:
        """Start a bar."""
        print(f"{experiment.name} ({experiment.label or 'for others to start from'})", flush=True)
        return self._open.enter_context(Display(experiment.name)).show

    def ended(self, experiment: Experiment, outcome: Outcome) -> None:
        """Remove the bar, and say how the run went."""
        self._open.close()
        self.interrupted = not outcome.finished
        if outcome.finished and outcome.accuracy is not None:
            print(f"{experiment.name}: accuracy {100 * outcome.accuracy:.2f} %", flush=True)
        elif not outcome.finished:
            print(f"{experiment.name}: stopped after step {outcome.step}", flush=True)

    def skipped(self, experiment: Experiment, why: str) -> None:
        """Say why an experiment was skipped; its bar may have started."""
        self._open.close()
        print(f"{experiment.name}: skipped, {why}", file=sys.stderr)


def _chosen(every: Sequence[Experiment], table: str) -> list[Experiment]:
    """Return the experiments of a table, and those that they start from, even in other tables."""
    wanted = {e.name for e in every if table in ("all", e.table)}
    for experiment in reversed(every):
        wanted |= {experiment.after} if experiment.name in wanted else set()
    return [e for e in every if e.name in wanted]


def _plan(chosen: list[Experiment], left: dict[str, float]) -> str:
    rows = [
        (
            e.name,
            e.table,
            e.recipe.run.epochs,
            round(e.passes * e.recipe.run.epochs),
            _time(left[e.name]) if e.name in left else "done",
        )
        for e in chosen
    ]
    total = f"{len(chosen) - len(left)} of {len(chosen)} done; about {_time(sum(left.values()))} left"
    return f"{text_table(('run', 'table', 'epochs', 'passes', 'time'), rows)}\n{total}"


def _time(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it from the command line."""
    return run_command("reproduce", __doc__, add_arguments, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
