"""A model as a list of operations: exported, with BatchNorm, additions and clips inside the layers before them."""

import operator
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from pof.errors import PofError
from pof.runtime.sparse_conv import ConvSpec

aten = torch.ops.aten
CONVOLUTION, LINEAR = aten.conv2d.default, aten.linear.default
NORMS = (aten._native_batch_norm_legit_no_training.default, aten.batch_norm.default)
ADD = (aten.add.Tensor, aten.add_.Tensor)
RELU = (aten.relu.default, aten.relu_.default)
HARDTANH = (aten.hardtanh.default, aten.hardtanh_.default)
CLAMP = (aten.clamp.default, aten.clamp_.default)
DROPOUT = (aten.dropout.default, aten.dropout_.default)
IN_PLACE = (*ADD, *RELU, *HARDTANH, *CLAMP, *DROPOUT)


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
class Program:
    """What a model does, in order."""

    inputs: tuple[str, ...]
    constants: dict[str, str]
    """By the name of a value, the key of the model's state_dict (or of what export made constant)."""
    items: tuple[Any, ...]
    """Operations and layers."""
    outputs: Any
    """A tree of `Ref`s and plain values."""
    fixed: bool
    """Whether it only takes inputs of the size of the example."""
    lifted: dict[str, Tensor]
    """Constants that are no part of the state_dict."""
    shapes: dict[str, tuple[Any, ...]]
    """Of the values, where sizes of the batch are symbols."""

    def state(self, model: nn.Module) -> dict[str, Tensor]:
        """A copy of the model's present constants, by the names of values."""
        tensors = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        return {
            name: self.lifted[key].clone() if key in self.lifted else tensors[key].detach().clone()
            for name, key in self.constants.items()
        }


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.ascontiguousarray(tensor.float().cpu().numpy())


def capture(model: nn.Module, example: tuple[Any, ...]) -> Program:
    """The program of `model`, whose batch may have any size if the model can be exported so.

    Raises:
        PofError: the model cannot be exported.
    """
    exported, fixed = _export(model, example)
    signature = exported.graph_signature
    constants = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    lifted = {key: value for key, value in exported.constants.items() if isinstance(value, Tensor)}
    lifted = {
        key: value for key, value in lifted.items() if key in set(signature.inputs_to_lifted_tensor_constants.values())
    }
    inputs = [node.name for node in exported.graph.nodes if node.op == "placeholder" and node.name not in constants]
    items: list[Item] = []
    outputs: Any = None
    for node in exported.graph.nodes:
        args, kwargs = (_with_refs(part) for part in (node.args, node.kwargs))
        if node.op == "call_function":
            items.append(Operation(node.name, node.target, tuple(args), dict(kwargs)))
        elif node.op == "output":
            outputs = pytree.tree_unflatten(list(args[0]), exported.call_spec.out_spec)
        elif node.op != "placeholder":
            raise PofError(f"the model has a {node.op} ({node.target}), which pof.compile cannot run")
    shapes = {n.name: tuple(n.meta["val"].shape) for n in exported.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    program = Program(tuple(inputs), constants, tuple(items), outputs, fixed, lifted, shapes)
    return _fused(program)


def _with_refs(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf, tree)


def _export(model: nn.Module, example: tuple[Any, ...]) -> tuple[torch.export.ExportedProgram, bool]:
    """The exported model, and whether its sizes are fixed."""
    wide = tuple(_two(value) for value in example)
    shapes = tuple({0: torch.export.Dim.DYNAMIC} if isinstance(v, Tensor) and v.dim() else None for v in wide)
    error: Exception | None = None
    for inputs, dynamic in ((wide, shapes), (example, None)):
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = torch.export.export(model, inputs, dynamic_shapes=dynamic)
                if _must_be_functional(found.graph):
                    found = found.run_decompositions({})
                return found, dynamic is None
        except Exception as failed:  # export fails in many ways, each with its own error
            error = error or failed
    raise PofError(f"the model cannot be exported: {str(error).splitlines()[0]}") from error


def _two(value: Any) -> Any:
    """A batch of one as a batch of two: export would take a size of 1 for a constant."""
    return (
        value.repeat(2, *[1] * (value.dim() - 1))
        if isinstance(value, Tensor) and value.dim() and len(value) == 1
        else value
    )


def _must_be_functional(graph: fx.Graph) -> bool:
    """Whether an operation writes in place what another one may see."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        first = node.args[0] if node.args else None
        if (
            node.target not in IN_PLACE
            or not isinstance(first, fx.Node)
            or len(first.users) > 1
            or first.op == "placeholder"
        ):
            return True
    return False


def _fused(program: Program) -> Program:
    """Convolutions and linear layers as `Layer`s, with what follows them inside."""
    fusion = _Fusion(program)
    for item in program.items:
        fusion.take(item)
    change = fusion.current
    outputs = pytree.tree_map(lambda leaf: Ref(change(leaf.name)) if isinstance(leaf, Ref) else leaf, program.outputs)
    return replace(program, items=tuple(_ordered(fusion.items)), outputs=outputs)


class _Fusion:
    """Takes operations in order, and puts those that can be into the layer that they follow."""

    def __init__(self, program: Program) -> None:
        self.items: list[Item] = []
        self._program = program
        self._uses = Counter(name for item in program.items for name in item.refs())
        self._uses.update(leaf.name for leaf in pytree.tree_leaves(program.outputs) if isinstance(leaf, Ref))
        self._open: dict[str, int] = {}
        """Where the layer is whose output a name is, if only one other takes that."""
        self._same: dict[str, str] = {}
        """Names of values that are others."""

    def current(self, name: str) -> str:
        """What a value is called now."""
        while name in self._same:
            name = self._same[name]
        return name

    def take(self, item: Operation) -> None:
        """One more operation."""
        operation = _renamed(item, self.current)
        first = operation.args[0] if operation.args else None
        if operation.target in DROPOUT and isinstance(first, Ref) and not operation.args[2]:
            self._alias(operation.name, first.name)
            return
        if operation.target is operator.getitem and isinstance(first, Ref) and first.name in self._open:
            # Of a BatchNorm that was folded: the first of its results is all that is ever used.
            self._alias(operation.name, first.name)
            return
        layer = _layer(operation, self._program)
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
        self.items[at] = replace(layer, name=operation.name)
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
        """Where the layer is that can take this operation into itself, and what it becomes."""
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
            taken = clipped or layer.kind != "conv" or layer.residual is not None or other in self._program.constants
            return None if taken or not self._same_shape(layer, other) else (at, replace(layer, residual=other))
        if refs[0] != name or clipped:
            return None
        if operation.target in NORMS:
            grown = _normed(layer, operation, self._program) if layer.residual is None and layer.norm is None else None
        else:
            grown = _clipped(layer, operation)
        return None if grown is None else (at, grown)

    def _same_shape(self, layer: Layer, other: str) -> bool:
        """Whether an addition needs no broadcasting, as far as export knows."""
        shapes = self._program.shapes
        mine, others = shapes.get(layer.name), shapes.get(other)
        return mine is not None and mine == others


def _normed(layer: Layer, operation: Operation, program: Program) -> Layer | None:
    """The layer with a BatchNorm in evaluation mode."""
    if layer.kind != "conv":
        return None
    full = operation.target is aten.batch_norm.default
    _, *norm = operation.args[:5]
    if (full and operation.args[5]) or any(part is not None and part.name not in program.constants for part in norm):
        return None
    scale, shift, mean, variance = (None if part is None else str(part.name) for part in norm)
    if mean is None or variance is None:
        return None
    return replace(layer, norm=(scale, shift, mean, variance), epsilon=float(operation.args[7 if full else 6]))


def _clipped(layer: Layer, operation: Operation) -> Layer | None:
    """The layer with a clip of its outputs."""
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


def _layer(operation: Operation, program: Program) -> Layer | None:
    """The operation as a layer, if it is a convolution or a linear one with constant weights."""
    if operation.target not in (CONVOLUTION, LINEAR) or operation.kwargs:
        return None
    source, weight, *more = operation.args
    bias = more[0] if more else None
    fixed = all(value is None or value.name in program.constants for value in (weight, bias))
    if not fixed or not isinstance(source, Ref) or source.name in program.constants:
        return None
    names = (operation.name, "conv" if operation.target is CONVOLUTION else "linear", source.name, weight.name)
    bias_name = None if bias is None else bias.name
    if operation.target is LINEAR:
        return Layer(*names, bias_name)
    defaults: tuple[Any, ...] = ([1, 1], [0, 0], [1, 1], 1)
    stride, padding, dilation, groups = (*more[1:], *defaults[len(more[1:]) :])
    if not all(isinstance(value, (list, tuple)) for value in (stride, padding, dilation)):
        return None
    return Layer(*names, bias_name, _pair(stride), _pair(padding), _pair(dilation), groups)


def _pair(values: Any) -> tuple[int, int]:
    return int(values[0]), int(values[-1])


def _ordered(items: list[Item]) -> list[Item]:
    """The items such that each comes after those that it takes: a residual may be made after its layer's old place."""
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
