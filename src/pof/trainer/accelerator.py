"""The engine that places and synchronises a run: in one process, in several, or on several machines."""

import warnings
from pathlib import Path

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from accelerate.utils import GradientAccumulationPlugin

from pof.checks import check_choice
from pof.errors import PofError, first_line
from pof.trainer.recipe import Recipe


def engine_for(recipe: Recipe, folder: Path | None = None) -> Accelerator:
    """Return accelerate's engine in the recipe's precision; its trackers write to `folder`."""
    for name in recipe.run.trackers:
        check_choice(name, "run.trackers", tuple(sorted(LOGGER_TYPE_TO_CLASS)))
    AcceleratorState._reset_state()  # or every run of this process would have the first one's precision
    # Passed explicitly, or an environment variable could divide the loss behind the recipe's back.
    once = GradientAccumulationPlugin(num_steps=1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`log_with=")  # missing packages are reported below
            engine = Accelerator(
                mixed_precision=recipe.run.precision,
                gradient_accumulation_plugin=once,
                log_with=list(recipe.run.trackers) or None,
                project_dir=folder,
            )
    except ValueError as error:
        raise PofError(
            f"run.precision={recipe.run.precision!r} does not work here ({first_line(error)}): try bf16 or no"
        ) from None
    used = {str(tracker) for tracker in engine.log_with}
    for name in recipe.run.trackers:  # accelerate silently drops trackers that are not installed
        if name not in used:
            raise PofError(f"run.trackers: {name!r} needs a package that is not installed: pip install {name}")
    if recipe.run.precision == "fp16" and engine.device.type == "cpu":
        raise PofError("run.precision='fp16' needs a GPU: use bf16 or no")
    return engine
