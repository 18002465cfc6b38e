"""The engine that places and synchronises a run: one process, several, or several machines."""

from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import GradientAccumulationPlugin

from pof.errors import PofError
from pof.train.recipe import Recipe


def engine_for(recipe: Recipe) -> Accelerator:
    """accelerate's, in the precision that the recipe asks for."""
    AcceleratorState._reset_state()  # or the precision of the first run in a process would be that of all
    # Named, or a variable of the environment would divide the loss behind the recipe's back.
    once = GradientAccumulationPlugin(num_steps=1)
    try:
        engine = Accelerator(mixed_precision=recipe.run.precision, gradient_accumulation_plugin=once)
    except ValueError as error:
        raise PofError(f"run.precision={recipe.run.precision!r} does not work here ({error}): try bf16 or no") from None
    if recipe.run.precision == "fp16" and engine.device.type == "cpu":
        raise PofError("run.precision='fp16' needs a GPU: use bf16 or no")
    return engine
