"""What a model does, as a list: operations of torch, and layers that can be sparse."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from pof.runtime.sparse_conv import ConvSpec


@dataclass(frozen=True)
class Ref:
    """The value of an operation, an input or a constant, by its name."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One call; arguments that are values of others are `Ref`s."""

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def refs(self) -> list[str]:
        """The names of all values that it takes."""
        return [leaf.name for leaf in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Ref)]


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer with what was fused into it."""

    name: str
    kind: str
    """"conv" or "linear"."""
    source: str
    weight: str
    bias: str | None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    norm: tuple[str | None, str | None, str, str] | None = None
    """Weight, bias, mean and variance of a BatchNorm."""
    epsilon: float = 0.0
    residual: str | None = None
    low: float = -inf
    high: float = inf

    def refs(self) -> list[str]:
        """The names of the values that it takes; its constants are not among them."""
        return [self.source] if self.residual is None else [self.source, self.residual]

    def spec(self, constants: Mapping[str, Tensor]) -> ConvSpec:
        """What it computes with these weights."""
        weight = constants[self.weight].detach().float()
        channels = len(weight)
        bias = (
            torch.zeros(channels, dtype=torch.float64) if self.bias is None else constants[self.bias].detach().double()
        )
        if self.norm is not None:
            scale, shift, mean, variance = (None if n is None else constants[n].detach().double() for n in self.norm)
            assert mean is not None
            assert variance is not None
            factor = (variance + self.epsilon).rsqrt() * (1.0 if scale is None else scale)
            bias = (bias - mean) * factor + (0.0 if shift is None else shift)
            weight = weight * factor.float().reshape(-1, *[1] * (weight.dim() - 1))
        if self.kind == "linear":
            weight = weight[:, :, None, None]
        places = (self.stride, self.padding, self.dilation, self.groups, self.low, self.high)
        return ConvSpec(_array(weight), _array(bias), *places)


Item = Operation | Layer


@dataclass(frozen=True)
class Range:
    """Sizes that one side of an input may have; sides with the same name have the same size."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Size:
    """The tensors that an input may be."""

    sides: tuple[int | Range, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Fixed:
    """The one value of an input that is no tensor: export takes it for a constant."""

    value: Any


@dataclass(frozen=True)
class Changes:
    """What a model writes to, by name, and the name of the value that it writes."""

    inputs: dict[str, str]
    buffers: dict[str, str]
    """By the names of constants."""

    def __bool__(self) -> bool:
        return bool(self.inputs or self.buffers)


@dataclass(frozen=True, eq=False)
class Program:
    """What a model does, in order."""

    inputs: tuple[str, ...]
    """Of the leaves of the arguments, in order."""
    sizes: tuple[Size | Fixed, ...]
    """What each of them may be."""
    constants: dict[str, str]
    """By the name of a value, the key of the model's state_dict (or of what export made constant)."""
    items: tuple[Any, ...]
    """Operations and layers."""
    outputs: Any
    """A tree of `Ref`s and plain values."""
    changes: Changes
    needs_strides: bool
    """Whether an operation looks at how tensors lie in memory, so that they must lie as torch has them."""
    lifted: dict[str, Tensor]
    """Constants that are no part of the state_dict."""
    shapes: dict[str, tuple[Any, ...]]
    """Of the values, where sizes of the batch are symbols."""
    floats: frozenset[str]
    """Values of float32."""

    def accepts(self, leaves: Sequence[Any]) -> bool:
        """Whether the program is right for these inputs."""
        if len(leaves) != len(self.sizes):
            return False
        seen: dict[str, int] = {}
        return all(_fits(size, leaf, seen) for size, leaf in zip(self.sizes, leaves, strict=True))

    def values(self, constants: Mapping[str, Tensor], leaves: Sequence[Any]) -> dict[str, Any]:
        """What there is before the first item."""
        return {**constants, **dict(zip(self.inputs, leaves, strict=True))}

    def wanted(self) -> list[str]:
        """The names of all values that are given back or written."""
        found = [leaf.name for leaf in pytree.tree_leaves(self.outputs) if isinstance(leaf, Ref)]
        return [*found, *self.changes.inputs.values(), *self.changes.buffers.values()]


def _fits(size: Size | Fixed, leaf: Any, seen: dict[str, int]) -> bool:
    if isinstance(size, Fixed):
        return type(leaf) is type(size.value) and bool(leaf == size.value)
    if not isinstance(leaf, Tensor) or leaf.dtype is not size.dtype or leaf.dim() != len(size.sides):
        return False
    for side, found in zip(size.sides, leaf.shape, strict=True):
        if isinstance(side, int):
            if side != found:
                return False
        elif not side.low <= found <= side.high or seen.setdefault(side.name, found) != found:
            return False
    return True


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.float().cpu().numpy())
