"""The learning rate as a pure function of the step, so that a checkpoint need not store it."""

import math

from pof.trainer.recipe import OptimizerRecipe


def learning_rate(recipe: OptimizerRecipe, step: int, steps: int, steps_per_epoch: int) -> float:
    """The rate at `step` of `steps`.

    cosine:    lr/2 * (1 + cos(pi * t))      t = the share of the run (or, for restarts, of the period) that is done
    steps:     lr * 0.1 ** floor(epoch / period)
    """
    base, epoch = recipe.learning_rate, step / steps_per_epoch
    if epoch < recipe.warmup:
        return base * (step + 1) / (recipe.warmup * steps_per_epoch)
    if recipe.schedule == "constant":
        return base
    if recipe.schedule == "steps":
        return base * 0.1 ** math.floor(epoch / recipe.period)
    if recipe.schedule == "restarts":
        return _cosine(base, (epoch % recipe.period) / recipe.period)
    rising = recipe.warmup * steps_per_epoch
    return _cosine(base, (step - rising) / max(1.0, steps - rising))


def _cosine(base: float, done: float) -> float:
    return base / 2 * (1 + math.cos(math.pi * done))
