"""Fuse into each layer what follows it: BatchNorm, an addition, a clip of the outputs."""

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pof.runtime.layer_operations import layer_of
from pof.runtime.program import Changes, Item, Layer, Operation, Program, Ref

aten = torch.ops.aten
TUPLE_NORM = aten._native_batch_norm_legit_no_training.default
"""BatchNorm without writing in place: it returns its outputs and two tensors that are empty in evaluation."""
NORMS = (TUPLE_NORM, aten.batch_norm.default)
ADD = (aten.add.Tensor, aten.add_.Tensor)
RELU = (aten.relu.default, aten.relu_.default)
HARDTANH = (aten.hardtanh.default, aten.hardtanh_.default)
CLAMP = (aten.clamp.default, aten.clamp_.default)
DROPOUT = (aten.dropout.default, aten.dropout_.default)
IN_PLACE = (*ADD, *RELU, *HARDTANH, *CLAMP, *DROPOUT)


def fused(program: Program) -> Program:
    """The program with its convolutions and linear layers as `Layer`s, and what follows them fused in."""
    fusion = _Fusion(program)
    for item in program.items:
        fusion.take(item)
    change = fusion.current
    outputs = pytree.tree_map(lambda leaf: Ref(change(leaf.name)) if isinstance(leaf, Ref) else leaf, program.outputs)
    written = [{to: change(name) for to, name in each.items()} for each in vars(program.changes).values()]
    items = tuple(_ordered(fusion.items))
    return replace(program, items=items, outputs=outputs, changes=Changes(*written))


class _Fusion:
    """Takes operations in order, and fuses each one that it can into the layer before it."""

    def __init__(self, program: Program) -> None:
        self.items: list[Item] = []
        self._program = program
        self._uses = Counter(name for item in program.items for name in item.refs())
        self._uses.update(program.wanted())
        self._open: dict[str, int] = {}
        """The place in `items` of each layer whose output is used only once, by the name of that output."""
        self._same: dict[str, str] = {}
        """Names that stand for another value, each with the name of that value."""
        self._tuples: dict[str, int] = {}
        """The place in `items` of each layer with a fused BatchNorm whose result is a tuple, by the tuple's name."""

    def current(self, name: str) -> str:
        """The present name of a value."""
        while name in self._same:
            name = self._same[name]
        return name

    def take(self, item: Operation) -> None:
        """Take the next operation."""
        operation = _renamed(item, self.current)
        first = operation.args[0] if operation.args else None
        if operation.target in DROPOUT and isinstance(first, Ref) and not operation.args[2]:
            self._alias(operation.name, first.name)
            return
        if operation.target is operator.getitem and isinstance(first, Ref) and first.name in self._tuples:
            # A BatchNorm that is not in place gives a tuple, of which only the first part is ever used.
            self._grow(self._tuples.pop(first.name), operation.name)
            return
        layer = layer_of(operation, self._program)
        if layer is not None:
            self.items.append(layer)
            self._note(layer, len(self.items) - 1)
            return
        grown = self._grown(operation)
        if grown is None:
            self.items.append(operation)
            return
        at, layer = grown
        del self._open[self.items[at].name]
        self.items[at] = layer
        if operation.target is TUPLE_NORM:
            self._tuples[operation.name] = at
        else:
            self._grow(at, operation.name)

    def _grow(self, at: int, name: str) -> None:
        """Let a layer give the value of this name."""
        layer = self.items[at]
        assert isinstance(layer, Layer)
        self.items[at] = replace(layer, name=name)
        self._note(self.items[at], at)

    def _alias(self, name: str, other: str) -> None:
        self._same[name] = other
        self._uses[other] += self._uses[name] - 1
        if self._uses[other] != 1:
            self._open.pop(other, None)

    def _note(self, layer: Item, at: int) -> None:
        if self._uses[layer.name] == 1:
            self._open[layer.name] = at

    def _grown(self, operation: Operation) -> tuple[int, Layer] | None:
        """The place of the layer that can absorb this operation, and the layer that it becomes."""
        refs = [value.name for value in operation.args if isinstance(value, Ref)]
        mine = [name for name in refs if name in self._open]
        if not mine or operation.kwargs:
            return None
        name = max(mine, key=lambda n: self._open[n])
        at = self._open[name]
        layer = self.items[at]
        assert isinstance(layer, Layer)
        clipped = layer.low != -inf or layer.high != inf
        if operation.target in ADD and len(operation.args) == 2 and len(set(refs)) == 2:
            other = refs[0] if refs[1] == name else refs[1]
            taken = (
                clipped
                or layer.kind != "conv"
                or layer.dims == 3
                or layer.residual is not None
                or other in self._program.fixed
            )
            return None if taken or not self._same_shape(layer, other) else (at, replace(layer, residual=other))
        if refs[0] != name or clipped:
            return None
        if operation.target is TUPLE_NORM and self._uses[operation.name] != 1:
            return None
        if operation.target in NORMS:
            grown = _normed(layer, operation, self._program) if layer.residual is None and layer.norm is None else None
        else:
            grown = _clipped(layer, operation)
        return None if grown is None else (at, grown)

    def _same_shape(self, layer: Layer, other: str) -> bool:
        """Whether an addition needs no broadcasting, as far as export can tell."""
        shapes = self._program.shapes
        mine, others = shapes.get(layer.name), shapes.get(other)
        return mine is not None and mine == others and other in self._program.floats


def _normed(layer: Layer, operation: Operation, program: Program) -> Layer | None:
    """The layer with a BatchNorm in evaluation mode fused in; None if that cannot be done."""
    if layer.kind != "conv" or len(program.shapes[layer.source]) != layer.dims + 2:
        # Without a batch, BatchNorm takes another axis for the channels.
        return None
    full = operation.target is aten.batch_norm.default
    _, *norm = operation.args[:5]
    if (full and operation.args[5]) or any(part is not None and part.name not in program.fixed for part in norm):
        return None
    scale, shift, mean, variance = (None if part is None else str(part.name) for part in norm)
    if mean is None or variance is None:
        return None
    return replace(layer, norm=(scale, shift, mean, variance), epsilon=float(operation.args[7 if full else 6]))


def _clipped(layer: Layer, operation: Operation) -> Layer | None:
    """The layer with a clip of its outputs; None if the operation is not a clip by constants."""
    ends = list(operation.args[1:])
    if operation.target in RELU:
        ends = [0.0, None]
    elif operation.target in HARDTANH:
        ends += [-1.0, 1.0][len(ends) :]
    elif operation.target in CLAMP:
        ends += [None, None][len(ends) :]
    else:
        return None
    low, high = ends
    if not all(end is None or isinstance(end, (int, float)) for end in (low, high)):
        return None
    return replace(layer, low=-inf if low is None else float(low), high=inf if high is None else float(high))


def _renamed(operation: Operation, current: Callable[[str], str]) -> Operation:
    def change(leaf: Any) -> Any:
        return Ref(current(leaf.name)) if isinstance(leaf, Ref) else leaf

    args, kwargs = pytree.tree_map(change, operation.args), pytree.tree_map(change, dict(operation.kwargs))
    return replace(operation, args=args, kwargs=kwargs)


def _ordered(items: list[Item]) -> list[Item]:
    """Sort the items so that each comes after its inputs: a residual may be made after its layer's old place."""
    made = {item.name for item in items}
    done: set[str] = set()
    out: list[Item] = []
    waiting = list(items)
    while waiting:
        ready = [item for item in waiting if all(name in done or name not in made for name in item.refs())]
        first = ready[0]
        out.append(first)
        done.add(first.name)
        waiting.remove(first)
    return out
