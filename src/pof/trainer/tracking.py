"""Sends the figures of a run to TensorBoard, or to any other tracker that the recipe names."""

from typing import Any

from accelerate import Accelerator

from pof.trainer.events import EpochDone, Event, Show, StepDone
from pof.trainer.recipe import Recipe

EVERY = 10
"""Steps between two log entries."""


class Tracker:
    """Passes events on to `show`, and their figures to the engine's trackers, if there are any."""

    def __init__(self, engine: Accelerator, recipe: Recipe, show: Show, steps_per_epoch: int) -> None:
        self._engine, self._show, self._steps_per_epoch = engine, show, steps_per_epoch
        if engine.log_with:
            engine.init_trackers("pof", config=_flat(recipe.as_dict()))

    def show(self, event: Event) -> None:
        """Show one event, and log its figures."""
        self._show(event)
        if isinstance(event, StepDone) and event.step % EVERY == 0:
            self._log({"loss": event.loss, "learning_rate": event.learning_rate, **event.figures}, event.step)
        elif isinstance(event, EpochDone):
            values = {f"epoch/{name}": value for name, value in event.figures.items()}
            self._log(values, event.epoch * self._steps_per_epoch)

    def finish(self, step: int, accuracy: float, table: list[dict[str, Any]]) -> None:
        """Log the accuracy of the finished network and of each tested state, then end tracking."""
        values = {"final/accuracy": accuracy}
        for row in table:
            state = f"{row['recover_from']:g}-{row['sparsity']:g} {row['scope']}"
            values[f"final/{state}"] = row["accuracy"]
            if row["calibrated"] is not None:
                values[f"final/{state} calibrated"] = row["calibrated"]
        self._log(values, step)
        self._engine.end_training()

    def _log(self, values: dict[str, float], step: int) -> None:
        if self._engine.log_with:
            self._engine.log(values, step=step)


def _flat(table: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten `table` to one level of values that every tracker accepts."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{name}.")
        else:
            found[path + name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return found
