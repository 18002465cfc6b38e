"""The steps of a program for one size of input: where values lie, what is copied, and which memory is used again."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pof.runtime.flat_chains import flat_chains, is_mean_of_images
from pof.runtime.geometry import Geometry, Phases
from pof.runtime.geometry import buffers as buffers_for
from pof.runtime.kernels import NativeCall, together
from pof.runtime.layouts import Layouts, Shape
from pof.runtime.program import Item, Layer, Operation, Program, Ref
from pof.runtime.sparse_conv import ConvSpec, SparseConv
from pof.runtime.steps import (
    Bound,
    Buffers,
    Call,
    Convolve,
    CopyAcross,
    CopyIn,
    MaxPool,
    Mean,
    Show,
    SparseLinear,
    Step,
    TorchLayer,
    Values,
    Weights,
)

aten = torch.ops.aten


class Work(NamedTuple):
    """What one thread needs to run a plan."""

    buffers: Buffers
    steps: list[tuple[str, Bound]]
    """With the name of the item that each is for."""
    calls: list[Bound]
    """The same with those of the core that follow each other in one call."""


class Plan:
    """What to do for inputs of one size; the memory that it works in is made once a thread.

    Args:
        program: the model.
        specs: what its layers compute, by name.
        weights: the same for torch.
        constants: values that do not change.
        shapes: of all values that are images.
        sparse: names of the layers that the sparse kernels compute; torch does the others.
        threads: how many.
    """

    def __init__(
        self,
        program: Program,
        specs: Mapping[str, ConvSpec],
        weights: Weights,
        constants: Mapping[str, Tensor],
        shapes: Mapping[str, Shape],
        sparse: Sequence[str],
        threads: int,
    ) -> None:
        self._program = program
        # Copies, in which `take` puts others: the steps hold them too.
        self._specs, self._weights, self._constants = dict(specs), dict(weights), dict(constants)
        self._threads, self._sparse = threads, set(sparse)
        items = [item for item in program.items if isinstance(item, Layer) and item.name in self._sparse]
        self._flat = flat_chains(program, items, shapes)
        self._shapes = {**shapes, **{name: (*shapes[name][:2], 1, 1) for name in self._flat.held}}
        self.kernels: dict[str, SparseConv] = {}
        """By the name of the layer."""
        self.linear: dict[str, dict[int, SparseConv]] = {}
        self.steps: list[tuple[str, Step]] = []
        """With the name of the item that each is for."""
        self._sizes: list[Geometry | Phases] = []
        self._free: dict[Geometry | Phases, list[int]] = {}
        self._place: dict[str, int] = {}
        """In which buffer a value is."""
        self._shown: set[str] = set(program.inputs)
        """Values that torch can see."""
        mine = [self._flat.layers.get(item.name, item) for item in items if self._is_conv(item)]
        self._layouts = Layouts(mine, {layer.name: specs[layer.name].reach for layer in mine}, self._shapes)
        self._wanted = {
            name for layer in mine for name in layer.refs() if layer.stride == (1, 1) or name == layer.residual
        }
        self._wanted |= {layer.source for layer in mine}
        self._build()

    def work(self) -> "Work":
        """Memory for one thread, and the steps in it."""
        buffers = buffers_for(self._sizes)
        steps = [(name, step.bind(buffers)) for name, step in self.steps]
        return Work(buffers, steps, _joined([step for _, step in steps]))

    def run(self, inputs: Sequence[Any], work: "Work") -> Any:
        """The outputs for `inputs`."""
        values = self.values(inputs)
        for call in work.calls:
            call(values)
        return self._outputs(values)

    def values(self, inputs: Sequence[Any]) -> Values:
        """What there is before the first step."""
        return {**self._constants, **dict(zip(self._program.inputs, inputs, strict=True))}

    def take(self, specs: Mapping[str, ConvSpec], weights: Weights, constants: Mapping[str, Tensor]) -> None:
        """Take other weights."""
        self._specs.update(specs)
        self._weights.update(weights)
        self._constants.update(constants)
        for name, kernel in self.kernels.items():
            kernel.pack(specs[name])
        for name, kernels in self.linear.items():
            for kernel in kernels.values():
                kernel.pack(specs[name])

    def _outputs(self, values: Values) -> Any:
        """What the model gives back, in memory of its own."""

        def value(leaf: Any) -> Any:
            if not isinstance(leaf, Ref):
                return leaf
            found = values[leaf.name]
            return (
                found.clone(memory_format=torch.contiguous_format)
                if self._place and isinstance(found, Tensor)
                else found
            )

        return pytree.tree_map(value, self._program.outputs)

    def _is_conv(self, item: Item) -> bool:
        """Whether it is a layer that the sparse kernels compute on images in buffers."""
        return item.name in self._sparse and (item.name in self._flat.layers or getattr(item, "kind", "") == "conv")

    def _build(self) -> None:
        items = [item for item in self._program.items if item.name not in self._flat.skipped]
        items = [self._flat.layers.get(item.name, item) for item in items]
        last = {name: number for number, item in enumerate(items) for name in item.refs()}
        for number, item in enumerate(items):
            if self._is_conv(item):
                self._convolve(item)
            elif isinstance(item, Layer):
                self._show(item.refs())
                self._layer(item)
            elif not (self._pool(item) or self._mean(item)):
                self._show(item.refs())
                self._add(item.name, Call(item))
                self._shown.add(item.name)
            for name in item.refs():
                # What torch has seen may be in a view that lives on.
                if last[name] == number and name in self._place and name not in self._shown:
                    self._release(self._place[name])
        self._show([leaf.name for leaf in pytree.tree_leaves(self._program.outputs) if isinstance(leaf, Ref)])

    def _add(self, name: str, step: Step) -> None:
        self.steps.append((name, step))

    def _take(self, size: Geometry | Phases) -> int:
        free = self._free.setdefault(size, [])
        if free:
            return free.pop()
        self._sizes.append(size)
        return len(self._sizes) - 1

    def _release(self, buffer: int) -> None:
        self._free[self._sizes[buffer]].append(buffer)

    def _show(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._place and name not in self._shown:
                self._add(name, Show(name, self._place[name], self._layouts.of(name), name in self._flat.held))
                self._shown.add(name)

    def _hold(self, name: str, user: str) -> int:
        """The buffer that a value is in, brought there if need be."""
        if name not in self._place:
            geometry = self._layouts.of(name)
            self._place[name] = self._take(geometry)
            size = (geometry.height, geometry.width)
            self._add(user, CopyIn(name, self._place[name], geometry, None, size, self._threads))
        return self._place[name]

    def _layer(self, layer: Layer) -> None:
        if layer.name in self._sparse:
            kernels = self.linear[layer.name] = {}
            self._add(layer.name, SparseLinear(layer, self._specs, kernels, self._threads))
        else:
            self._add(layer.name, TorchLayer(layer, self._weights))
        self._shown.add(layer.name)

    def _convolve(self, layer: Layer) -> None:
        spec, out = self._specs[layer.name], self._layouts.of(layer.name)
        source: Geometry | Phases
        if spec.strided:
            images, channels = self._shapes[layer.source][:2]
            source = spec.phases(images, channels, out)
            inside = self._take(source)
            size = spec.needed(out)
            if layer.source in self._place:
                of = self._layouts.of(layer.source)
                copied: Step = CopyAcross(self._place[layer.source], of, inside, source, spec, size, self._threads)
            else:
                copied = CopyIn(layer.source, inside, source, spec, size, self._threads)
            self._add(layer.name, copied)
        else:
            source, inside = self._layouts.of(layer.source), self._hold(layer.source, layer.name)
        residual = None if layer.residual is None else self._hold(layer.residual, layer.name)
        self._place[layer.name] = self._take(out)
        self.kernels[layer.name] = SparseConv(spec, source, out, self._threads)
        self._add(layer.name, Convolve(self.kernels[layer.name], inside, residual, self._place[layer.name]))
        if spec.strided:
            self._release(inside)

    def _pool(self, item: Operation) -> bool:
        """Pool by ourselves if the result is wanted in a buffer."""
        settings = _pool_settings(item)
        if settings is None or item.name not in self._wanted or item.name not in self._shapes:
            return False
        (source,) = item.refs()
        if source not in self._place and self._layouts.of(item.name).lanes > 1:
            self._hold(source, item.name)
        images, channels, height, width = self._shapes[source]
        target = self._layouts.of(item.name)
        geometry = self._layouts.of(source) if source in self._place else None
        geometry = geometry or Geometry(images, channels, height, width, 0, 0, width, target.lanes)
        self._place[item.name] = self._take(target)
        where = self._place.get(source, source)
        self._add(item.name, MaxPool(where, geometry, self._place[item.name], target, *settings, self._threads))
        return True

    def _mean(self, item: Operation) -> bool:
        """Take the mean of images by ourselves if they are in a buffer."""
        if not is_mean_of_images(item) or item.refs()[0] not in self._place:
            return False
        source, target = item.refs()[0], self._layouts.of(item.name)
        self._place[item.name] = self._take(target)
        where = (self._place[source], self._layouts.of(source), self._place[item.name], target)
        self._add(item.name, Mean(*where, self._threads))
        return True


def _joined(steps: Sequence[Bound]) -> list[Bound]:
    """Steps of the core that follow each other as one."""
    found: list[Bound] = []
    native: list[NativeCall] = []
    for step in steps:
        if isinstance(step, NativeCall):
            native.append(step)
            continue
        found += [together(native), step] if native else [step]
        native = []
    return [*found, together(native)] if native else found


def _pool_settings(item: Operation) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """Kernel, stride and padding of a plain max pool."""
    if item.target is not aten.max_pool2d.default or item.kwargs:
        return None
    defaults: list[Any] = [None, [], [0, 0], [1, 1], False]
    kernel, stride, padding, dilation, ceil = [*item.args[1:], *defaults[len(item.args) - 1 :]]
    if ceil or set(dilation) != {1}:
        return None
    stride = stride or kernel
    pairs = [(int(values[0]), int(values[-1])) for values in (kernel, stride, padding)]
    return pairs[0], pairs[1], pairs[2]
