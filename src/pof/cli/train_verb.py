"""Train or fine-tune a network as a recipe says.

The same command resumes a stopped run, and does nothing for a finished one.
Ctrl-C stops after writing a checkpoint.

example: pof train recipes/digits-pof.toml --set run.epochs=5 --out runs/try
"""

import argparse
import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pof.trainer.events import Event, StepDone

RECENT = 50
"""Steps over which the images per second are measured."""
WIDTH = 79
HELP = "train or fine-tune a network as a recipe says"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof train`."""
    parser.add_argument("recipe", metavar="RECIPE.toml", help="the recipe to run")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="change a key of the recipe")
    parser.add_argument("--out", metavar="DIR", help="folder of the run (runs/NAME-SEED)")
    parser.add_argument("--model", metavar="MODULE:FUNCTION", help="a model of your own")
    parser.add_argument("--weights", metavar="FILE", help="weights to start from")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Train, show how it goes, and print how it ended."""
    from pof.trainer.kept_heap import keep_freed_memory
    from pof.trainer.recipe import read_recipe
    from pof.trainer.run import run_recipe

    keep_freed_memory()
    changes = list(options.set)
    # As JSON strings, which TOML reads too: a file may be called 123.
    changes += [f"model.name={json.dumps(options.model)}"] if options.model else []
    changes += [f"model.weights={json.dumps(options.weights)}"] if options.weights else []
    recipe = read_recipe(options.recipe, changes)
    out = options.out or f"runs/{recipe.name}-{recipe.run.seed}"
    if int(os.environ.get("RANK", "0")):
        return 0 if run_recipe(recipe, out).finished else 130  # only one of several processes prints
    if options.json:
        outcome = run_recipe(recipe, out)
        print(json.dumps({"out": out, **vars(outcome)}))
        return 0 if outcome.finished else 130
    with Display(recipe.name) as display:
        outcome = run_recipe(recipe, out, display.show)
    from pof.report.accuracies import accuracy_table

    if not outcome.finished:
        print(f"stopped after step {outcome.step}; the same command resumes from there")
        return 130
    if outcome.already:
        print(f"{out} had finished already; nothing was done")
    if outcome.table:
        print(accuracy_table(outcome.table, outcome.test_images, held_out=recipe.data.hold_out > 0))
    print(f"accuracy {_percent(outcome.accuracy)} after {outcome.step} steps; weights in {out}/model.safetensors")
    return 0


class Display:
    """Shows the events of a run."""

    def __init__(self, name: str) -> None:
        from pof.terminal.progress_bars import Bars

        self._name, self._bars = name, Bars()
        self._lately: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def __enter__(self) -> "Display":
        self._bars.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bars.__exit__(*error)

    def show(self, event: "Event") -> None:
        """Show a step, the end of an epoch, or a state that was tested."""
        from pof.trainer.events import EpochDone, StepDone

        if isinstance(event, StepDone):
            self._step(event)
        elif isinstance(event, EpochDone):
            self._bars.line(_lines(f"epoch {event.epoch}/{event.epochs}", _figures(event.figures)))
        else:
            self._bars.update("testing", event.done, event.states, event.state)

    def _step(self, event: "StepDone") -> None:
        self._lately.append((time.perf_counter(), event.images))
        (began, images), (now, _) = self._lately[0], self._lately[-1]
        rate = (event.images - images) / max(now - began, 1e-9)
        figures = {"loss": event.loss, **event.figures, SPEED: round(rate)}
        self._bars.update(self._name, event.step, event.steps, "  ".join(_figures(figures)))


SPEED = "images per second"
SHORT = {"images_per_second": SPEED, "learning_rate": "lr"}


def _figures(figures: Mapping[str, float]) -> list[str]:
    """Write each figure with its name, without those that are not known yet."""
    known = {SHORT.get(key, key): value for key, value in figures.items() if not math.isnan(value)}
    return [_figure(key, value) for key, value in known.items()]


def _figure(key: str, value: float) -> str:
    if key == SPEED:
        return f"{value:.0f}/s"
    return f"{key} {_percent(value) if key == 'accuracy' else _short(value)}"


def _short(value: float) -> str:
    """Write two or three digits, so that the figures of an epoch fit on a line of a terminal."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}" if value >= 0.01 else f"{value:.1g}"


def _lines(title: str, parts: list[str]) -> str:
    """Write the parts after the title, in as many lines of at most 79 columns as they need."""
    lines = [title]
    for part in parts:
        if len(lines[-1]) + 2 + len(part) > WIDTH:
            lines.append(" " * len(title))
        lines[-1] += f"  {part}"
    return "\n".join(lines)


def _percent(accuracy: float | None) -> str:
    return "unknown" if accuracy is None else f"{100 * accuracy:.2f} %"
