"""A model as a list of torch operations, and of layers that can be sparse."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from pof.runtime.sparse_conv import ConvSpec, Depth


@dataclass(frozen=True)
class Ref:
    """A reference, by name, to an operation's result, an input or a constant."""

    name: str


@dataclass(frozen=True)
class Operation:
    """One call; arguments that are other items' values are `Ref`s."""

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def refs(self) -> list[str]:
        """The names of all values that it takes as arguments."""
        return [leaf.name for leaf in pytree.tree_leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Ref)]


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer, with all that was fused into it."""

    name: str
    kind: str
    """Either "conv" or "linear"."""
    source: str
    weight: str
    bias: str | None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    norm: tuple[str | None, str | None, str, str] | None = None
    """The names of the weight, bias, mean and variance of a fused BatchNorm."""
    epsilon: float = 0.0
    residual: str | None = None
    low: float = -inf
    high: float = inf
    transposed: bool = False
    """Whether the weight of a linear layer is stored as (in, out)."""
    dims: int = 2
    """How many dimensions a convolution has; the settings above are of the last two."""
    depth: Depth | None = None
    """The settings of the first of three dimensions."""

    def refs(self) -> list[str]:
        """The names of the values that it takes as inputs, without its constants."""
        return [self.source] if self.residual is None else [self.source, self.residual]

    def settings(self) -> list[tuple[int, ...]]:
        """The stride, padding and dilation of a convolution, as torch takes them."""
        pairs: list[tuple[int, ...]] = [self.stride, self.padding, self.dilation]
        if self.depth is not None:
            return [(first, *pair) for first, pair in zip(self.depth[1:], pairs, strict=True)]
        return [pair[-self.dims :] for pair in pairs]

    def spec(self, constants: Mapping[str, Tensor]) -> ConvSpec:
        """The convolution that it computes with these weights."""
        weight = constants[self.weight].detach().double()
        weight = weight.t() if self.transposed else weight
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
            weight = weight * factor.reshape(-1, *[1] * (weight.dim() - 1))
        if self.kind == "linear":
            weight = weight[:, :, None, None]
        elif self.dims != 2:
            # A line is an image of height one; each depth of a volume's kernel has input channels of its own.
            weight = weight[:, :, None] if self.dims == 1 else weight.flatten(1, 2)
        places = (self.stride, self.padding, self.dilation, self.groups, self.low, self.high)
        return ConvSpec(_array(weight), _array(bias), *places)


Item = Operation | Layer


@dataclass(frozen=True)
class Range:
    """The sizes that one side of an input may have; sides with the same name have the same size."""

    name: str
    low: int
    high: int


@dataclass(frozen=True)
class Size:
    """The shapes and the type that a tensor input may have."""

    sides: tuple[int | Range, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Fixed:
    """The only value that an input may have that is not a tensor: export treats it as a constant."""

    value: Any


@dataclass(frozen=True)
class Changes:
    """What a model writes to, by name, with the name of the value that it writes."""

    inputs: dict[str, str]
    buffers: dict[str, str]
    """The buffers go by the names of their constants."""

    def __bool__(self) -> bool:
        return bool(self.inputs or self.buffers)


@dataclass(frozen=True, eq=False)
class Program:
    """A model as data: its items in order, its inputs and its outputs."""

    inputs: tuple[str, ...]
    """The names of the inputs: the leaves of the arguments, in order."""
    sizes: tuple[Size | Fixed, ...]
    """What each input may be."""
    tree: pytree.TreeSpec
    """The tuples, lists and dicts that the inputs come in."""
    constants: dict[str, str]
    """The key of each constant in the model's state_dict, or in `lifted`, by the name of its value."""
    items: tuple[Any, ...]
    """The operations and layers, in order."""
    outputs: Any
    """What the model returns, as a tree of `Ref`s and plain values."""
    changes: Changes
    needs_strides: bool
    """Whether an operation depends on how tensors lie in memory, so that torch's own layout must be kept."""
    lifted: dict[str, Tensor]
    """Constants that export found outside the state_dict, by key."""
    shapes: dict[str, tuple[Any, ...]]
    """The shape of each tensor, by name; a free batch size is a symbol."""
    floats: frozenset[str]
    """The names of the float32 tensors."""
    derived: tuple[Operation, ...] = ()
    """The operations that depend on constants only, in order: they are computed once for given weights."""

    @cached_property
    def fixed(self) -> frozenset[str]:
        """The names of all values that no call changes: constants that are not written to, and what is derived."""
        return frozenset((set(self.constants) - set(self.changes.buffers)) | {item.name for item in self.derived})

    def title(self, weight: str) -> str:
        """The name of the layer that has this weight, or the one that this weight is made of."""
        origins = {item.name: item.refs() for item in self.derived}
        while weight not in self.constants:
            found = [name for name in origins[weight] if name in self.constants or name in origins]
            weight = max(found, key=lambda name: len(self.shapes.get(name, ())))
        return self.constants[weight].removesuffix(".weight")

    def accepts(self, leaves: Sequence[Any], tree: pytree.TreeSpec) -> bool:
        """Whether the program can run these inputs, which come in such tuples, lists and dicts."""
        if tree != self.tree or len(leaves) != len(self.sizes):
            return False
        seen: dict[str, int] = {}
        return all(_fits(size, leaf, seen) for size, leaf in zip(self.sizes, leaves, strict=True))

    def values(self, constants: Mapping[str, Tensor], leaves: Sequence[Any]) -> dict[str, Any]:
        """The values that exist before the first item runs."""
        return {**constants, **dict(zip(self.inputs, leaves, strict=True))}

    def returned(self, values: Mapping[str, Any]) -> Any:
        """What the model returns, from its values by name."""
        return pytree.tree_map(lambda leaf: values[leaf.name] if isinstance(leaf, Ref) else leaf, self.outputs)

    def wanted(self) -> list[str]:
        """The names of all values that are returned or written back."""
        found = [leaf.name for leaf in pytree.tree_leaves(self.outputs) if isinstance(leaf, Ref)]
        return [*found, *self.changes.inputs.values(), *self.changes.buffers.values()]


def _fits(size: Size | Fixed, leaf: Any, seen: dict[str, int]) -> bool:
    if isinstance(size, Fixed):
        # 0.0 and -0.0 differ, and NaN is NaN.
        same = repr(leaf) == repr(size.value) if isinstance(leaf, float) else leaf == size.value
        return type(leaf) is type(size.value) and bool(same)
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
