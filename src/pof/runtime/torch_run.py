"""Run a program by torch alone: the baseline of the sparse kernels, and the fallback where they gain nothing."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pof.runtime.execution_steps import LayerWeights, NamedValues, bound_call, dense
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


ReadyItem = tuple[str, Layer | None, Callable[[Mapping[str, Any]], Any]]
"""The name of an item, the layer if it is one, and else what to call with the values."""

_CALLS: WeakKeyDictionary[Program, list[ReadyItem]] = WeakKeyDictionary()
"""The items of a program, made ready to be called."""


def values_of(
    program: Program, weights: LayerWeights, constants: Mapping[str, Tensor], leaves: Sequence[Any]
) -> NamedValues:
    """All values, from one run of all items."""
    values = program.values(constants, leaves)
    for name, layer, call in _calls(program):
        values[name] = call(values) if layer is None else dense(layer, weights[name], values)
    return values


def run(program: Program, weights: LayerWeights, constants: Mapping[str, Tensor], leaves: Sequence[Any]) -> Passed:
    """Run all items once, and time each."""
    values = program.values(constants, leaves)
    milliseconds: dict[str, float] = {}
    for name, layer, call in _calls(program):
        start = time.perf_counter()
        values[name] = call(values) if layer is None else dense(layer, weights[name], values)
        milliseconds[name] = 1e3 * (time.perf_counter() - start)
    return Passed(values, milliseconds)


def _calls(program: Program) -> list[ReadyItem]:
    if program not in _CALLS:
        _CALLS[program] = [
            (item.name, item, _nothing) if isinstance(item, Layer) else (item.name, None, bound_call(item))
            for item in program.items
        ]
    return _CALLS[program]


def _nothing(values: Mapping[str, Any]) -> None:
    """A layer is not called: it is computed with weights that change."""


def timed(
    program: Program, weights: LayerWeights, constants: Mapping[str, Tensor], leaves: Sequence[Any], rounds: int
) -> Passed:
    """Run several passes and take medians: alone, with all its data in the cache, an item would look too fast."""
    run(program, weights, constants, leaves)
    passes = [run(program, weights, constants, leaves) for _ in range(rounds)]
    medians = {name: statistics.median(p.milliseconds[name] for p in passes) for name in passes[0].milliseconds}
    return Passed(passes[0].values, medians)
