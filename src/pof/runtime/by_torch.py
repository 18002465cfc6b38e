"""The program run by torch alone: what the sparse kernels are compared with, and what runs where they gain nothing."""

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pof.runtime.program import Layer, Program, Ref
from pof.runtime.sparse_conv import ConvSpec
from pof.runtime.steps import Weights, call, dense

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Passed:
    """What one pass gave."""

    outputs: Any
    shapes: Shapes
    """Of all float32 tensors, by name."""
    milliseconds: dict[str, float]
    """Of each item."""


def run(program: Program, weights: Weights, constants: Mapping[str, Tensor], inputs: Sequence[Any]) -> Passed:
    """One pass."""
    values: dict[str, Any] = {**constants, **dict(zip(program.inputs, inputs, strict=True))}
    milliseconds: dict[str, float] = {}
    for item in program.items:
        start = time.perf_counter()
        if isinstance(item, Layer):
            values[item.name] = dense(item, weights[item.name], values)
        else:
            values[item.name] = call(item, values)
        milliseconds[item.name] = 1e3 * (time.perf_counter() - start)
    shapes = {n: tuple(v.shape) for n, v in values.items() if isinstance(v, Tensor) and v.dtype is torch.float32}
    outputs = pytree.tree_map(lambda leaf: values[leaf.name] if isinstance(leaf, Ref) else leaf, program.outputs)
    return Passed(outputs, shapes, milliseconds)


def timed(
    program: Program, weights: Weights, constants: Mapping[str, Tensor], inputs: Sequence[Any], rounds: int
) -> Passed:
    """Several passes, and the medians: an item on its own, with all it needs in the cache, would look too good."""
    passes = [run(program, weights, constants, inputs) for _ in range(rounds + 1)][1:]
    medians = {name: statistics.median(p.milliseconds[name] for p in passes) for name in passes[0].milliseconds}
    return Passed(passes[0].outputs, passes[0].shapes, medians)


def weights_of(layer: Layer, spec: ConvSpec) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer as torch wants them."""
    weight = torch.from_numpy(spec.weight)
    return weight[:, :, 0, 0] if layer.kind == "linear" else weight, torch.from_numpy(spec.bias)


def channels_last(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same in torch's other layout."""
    return weight.contiguous(memory_format=torch.channels_last) if weight.dim() == 4 else weight, bias
