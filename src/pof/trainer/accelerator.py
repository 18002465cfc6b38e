"""The engine that places and synchronises a run: one process, several, or several machines."""

import warnings
from pathlib import Path

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from accelerate.utils import GradientAccumulationPlugin

from pof.checks import check_choice
from pof.errors import PofError
from pof.trainer.recipe import Recipe


def engine_for(recipe: Recipe, folder: Path | None = None) -> Accelerator:
    """accelerate's, in the precision that the recipe asks for; its trackers write to `folder`."""
    for name in recipe.run.trackers:
        check_choice(name, "run.trackers", tuple(sorted(LOGGER_TYPE_TO_CLASS)))
    AcceleratorState._reset_state()  # or the precision of the first run in a process would be that of all
    # Named, or a variable of the environment would divide the loss behind the recipe's back.
    once = GradientAccumulationPlugin(num_steps=1)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`log_with=")  # what is missing is named below
            engine = Accelerator(
                mixed_precision=recipe.run.precision,
                gradient_accumulation_plugin=once,
                log_with=list(recipe.run.trackers) or None,
                project_dir=folder,
            )
    except ValueError as error:
        raise PofError(f"run.precision={recipe.run.precision!r} does not work here ({error}): try bf16 or no") from None
    used = {str(tracker) for tracker in engine.log_with}
    for name in recipe.run.trackers:  # accelerate leaves out what is not installed, without a word
        if name not in used:
            raise PofError(f"run.trackers: {name!r} needs a package that is not here: pip install {name}")
    if recipe.run.precision == "fp16" and engine.device.type == "cpu":
        raise PofError("run.precision='fp16' needs a GPU: use bf16 or no")
    return engine
