"""Run a program by torch alone: the baseline of the sparse kernels, and the fallback where they gain nothing."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pof.runtime.execution_steps import LayerWeights, NamedValues, call, dense
from pof.runtime.program import Layer, Program


@dataclass(frozen=True)
class Passed:
    """The result of one pass."""

    values: NamedValues
    """All values, by name."""
    milliseconds: dict[str, float]
    """The time of each item, by name."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all float32 tensors, by name."""
        tensors = {name: value for name, value in self.values.items() if isinstance(value, Tensor)}
        return {name: tuple(value.shape) for name, value in tensors.items() if value.dtype is torch.float32}


def run(program: Program, weights: LayerWeights, constants: Mapping[str, Tensor], leaves: Sequence[Any]) -> Passed:
    """Run all items once."""
    values = program.values(constants, leaves)
    milliseconds: dict[str, float] = {}
    for item in program.items:
        start = time.perf_counter()
        if isinstance(item, Layer):
            values[item.name] = dense(item, weights[item.name], values)
        else:
            values[item.name] = call(item, values)
        milliseconds[item.name] = 1e3 * (time.perf_counter() - start)
    return Passed(values, milliseconds)


def timed(
    program: Program, weights: LayerWeights, constants: Mapping[str, Tensor], leaves: Sequence[Any], rounds: int
) -> Passed:
    """Run several passes and take medians: alone, with all its data in the cache, an item would look too fast."""
    run(program, weights, constants, leaves)
    passes = [run(program, weights, constants, leaves) for _ in range(rounds)]
    medians = {name: statistics.median(p.milliseconds[name] for p in passes) for name in passes[0].milliseconds}
    return Passed(passes[0].values, medians)
