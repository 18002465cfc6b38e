"""The steps of a program for one size of input: where values lie, what is copied, which memory is reused."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from pof.runtime.compiled_weights import CompiledWeights
from pof.runtime.execution_steps import (
    BoundStep,
    Buffers,
    Convolve,
    CopyAcross,
    CopyIn,
    ExecutionStep,
    ImageMean,
    MaxPool,
    NamedValues,
    ShowTensor,
    SparseLinear,
    TorchLayer,
    TorchOperation,
)
from pof.runtime.image_geometry import Geometry, Phases
from pof.runtime.image_geometry import buffers as buffers_for
from pof.runtime.kernel_calls import NativeCall, together
from pof.runtime.one_pixel_linears import flat_chains, is_mean_of_images
from pof.runtime.program import Item, Layer, Operation, Program
from pof.runtime.sparse_conv import SparseConv
from pof.runtime.sparse_volumes import SparseVolume, volume_geometries
from pof.runtime.value_layouts import Layouts, Shape

aten = torch.ops.aten


class ThreadWork(NamedTuple):
    """What one thread needs to run a plan."""

    buffers: Buffers
    steps: list[tuple[str, BoundStep]]
    """Each step with the name of its item."""
    calls: list[BoundStep]
    """The same steps, with consecutive ones of the core joined into one call."""


class ExecutionPlan:
    """The steps for inputs of one size; each thread has its own memory to run them in.

    Args:
        program: the program of the model.
        taken: its weights.
        shapes: the shapes of all values that are float32 tensors.
        sparse: the names of the layers that the sparse kernels compute; torch computes the others.
        threads: how many threads to use.
    """

    def __init__(
        self, program: Program, taken: CompiledWeights, shapes: Mapping[str, Shape], sparse: Sequence[str], threads: int
    ) -> None:
        self._program, self._taken = program, taken
        self._given = (shapes, tuple(sparse), threads)
        self._threads, self.sparse = threads, frozenset(sparse)
        """The names of the layers that the sparse kernels compute."""
        items = [item for item in program.items if isinstance(item, Layer) and item.name in self.sparse]
        self._flat = flat_chains(program, items, shapes)
        self._dims = {name: len(shape) for name, shape in shapes.items()}
        """How many dimensions torch's tensors have; plans hold features and lines as images of height one."""
        self._shapes = {**shapes, **{name: (*shapes[name][:2], 1, 1) for name in self._flat.held}}
        lines = {name for item in items if item.dims == 1 for name in (item.name, *item.refs())}
        self._shapes |= {name: (*shapes[name][:2], 1, shapes[name][2]) for name in lines}
        self.steps: list[tuple[str, ExecutionStep]] = []
        """Each step with the name of its item."""
        self._sizes: list[Geometry | Phases] = []
        self._uses: list[object] = []
        """The use of each buffer: its size, and which parts of it stay zero."""
        self._free: dict[object, list[int]] = {}
        self._place: dict[str, int] = {}
        """The buffer that holds each value."""
        self._shown: set[str] = set(program.inputs)
        """The values that torch can see."""
        mine = [self._flat.layers.get(item.name, item) for item in items if self._is_conv(item)]
        reaches = {layer.name: taken.specs[layer.name].reach for layer in mine}
        self._layouts = Layouts(mine, reaches, self._shapes)
        self._wanted = {
            name for layer in mine for name in layer.refs() if layer.stride == (1, 1) or name == layer.residual
        }
        self._wanted |= {layer.source for layer in mine}
        self._build()

    def work(self) -> "ThreadWork":
        """The memory for one thread, and the steps bound to it."""
        buffers = buffers_for(self._sizes)
        steps = [(name, step.bind(buffers)) for name, step in self.steps]
        return ThreadWork(buffers, steps, _joined([step for _, step in steps]))

    def run(self, leaves: Sequence[Any], work: "ThreadWork") -> NamedValues:
        """Run the steps and return all values that torch can see; the next run overwrites those in buffers.

        Raises:
            UnforeseenError: a value has another size than the plan was made for.
        """
        values = self.values(leaves)
        for call in work.calls:
            call(values)
        return values

    def values(self, leaves: Sequence[Any]) -> NamedValues:
        """The values that exist before the first step."""
        return self._program.values(self._taken.constants, leaves)

    def of_layers(self) -> Callable[[CompiledWeights], "ExecutionPlan"]:
        """What makes the same plan with other weights; it holds none itself."""
        program, (shapes, sparse, threads) = self._program, self._given
        return lambda taken: ExecutionPlan(program, taken, shapes, sparse, threads)

    def _is_conv(self, item: Item) -> bool:
        """Whether the item is a layer that the sparse kernels compute on images in buffers."""
        if not isinstance(item, Layer) or item.name not in self.sparse or item.depth is not None:
            return False
        return item.kind == "conv" or item.name in self._flat.layers

    def _build(self) -> None:
        items = [item for item in self._program.items if item.name not in self._flat.skipped]
        items = [self._flat.layers.get(item.name, item) for item in items]
        last = {name: number for number, item in enumerate(items) for name in item.refs()}
        last |= dict.fromkeys(self._program.wanted(), len(items))
        for number, item in enumerate(items):
            if self._is_conv(item):
                self._convolve(item)
            elif isinstance(item, Layer):
                self._show(item.refs())
                self._layer(item)
            elif not (self._pool(item) or self._mean(item)):
                self._show(item.refs())
                self._add(item.name, TorchOperation(item))
                self._shown.add(item.name)
            for name in set(item.refs()):
                # A value that torch has seen may live on in a view.
                if last[name] == number and name in self._place and name not in self._shown:
                    self._release(self._place[name])
        self._show(self._program.wanted())

    def _add(self, name: str, step: ExecutionStep) -> None:
        self.steps.append((name, step))

    def _take(self, size: Geometry | Phases, use: object = None) -> int:
        """A buffer that has only ever had this use, so that the parts that are not written are zero."""
        key = (size, use)
        free = self._free.setdefault(key, [])
        if free:
            return free.pop()
        self._sizes.append(size)
        self._uses.append(key)
        return len(self._sizes) - 1

    def _release(self, buffer: int) -> None:
        self._free[self._uses[buffer]].append(buffer)

    def _show(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self._place and name not in self._shown:
                self._add(name, ShowTensor(name, self._place[name], self._layouts.of(name), self._dims[name]))
                self._shown.add(name)

    def _hold(self, name: str, user: str) -> int:
        """The buffer that holds a value; the value is copied there first if needed."""
        if name not in self._place:
            geometry = self._layouts.of(name)
            self._place[name] = self._take(geometry)
            size = (geometry.height, geometry.width)
            place = (name, self._shapes[name], self._place[name], geometry)
            self._add(user, CopyIn(*place, None, size, self._threads))
        return self._place[name]

    def _layer(self, layer: Layer) -> None:
        if layer.name in self.sparse and layer.depth is not None:
            self._volume(layer)
        elif layer.name in self.sparse:
            self._add(layer.name, SparseLinear(layer, self._taken.specs, {}, self._threads))
        else:
            self._add(layer.name, TorchLayer(layer, self._taken.weights))
        self._shown.add(layer.name)

    def _volume(self, layer: Layer) -> None:
        spec, shape = self._taken.specs[layer.name], self._shapes[layer.source]
        source, out = volume_geometries(layer, spec, shape, self._shapes[layer.name])
        # What is around the slices must stay zero, so only a layer of the same sizes may have this buffer again.
        inside = self._take(source, (shape, spec.padding, spec.stride, layer.depth))
        outside = self._take(out)
        self._add(layer.name, SparseVolume(layer, spec, shape, inside, source, outside, out, self._threads))
        self._release(inside)
        self._release(outside)

    def _convolve(self, layer: Layer) -> None:
        spec, out = self._taken.specs[layer.name], self._layouts.of(layer.name)
        source: Geometry | Phases
        if spec.strided:
            images, channels, height, width = self._shapes[layer.source]
            source = spec.phases(images, channels, out)
            size = spec.needed(out)
            # All users of a buffer must write to the same part of it, so that the rest stays zero.
            inside = self._take(source, (spec.padding, min(height, size[0]), min(width, size[1])))
            if layer.source in self._place:
                of = self._layouts.of(layer.source)
                copied: ExecutionStep = CopyAcross(
                    self._place[layer.source], of, inside, source, spec, size, self._threads
                )
            else:
                place = (layer.source, self._shapes[layer.source], inside, source)
                copied = CopyIn(*place, spec, size, self._threads)
            self._add(layer.name, copied)
        else:
            source, inside = self._layouts.of(layer.source), self._hold(layer.source, layer.name)
        residual = None if layer.residual is None else self._hold(layer.residual, layer.name)
        self._place[layer.name] = self._take(out)
        kernel = SparseConv(spec, source, out, self._threads)
        self._add(layer.name, Convolve(kernel, inside, residual, self._place[layer.name]))
        if spec.strided:
            self._release(inside)

    def _pool(self, item: Operation) -> bool:
        """Add a pool of our own if a layer wants its result in a buffer, and say whether it was added."""
        settings = _pool_settings(item)
        if settings is None or item.name not in self._wanted or self._dims.get(item.name) != 4:
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
        """Add a mean of our own if its images are in a buffer, and say whether it was added."""
        if not is_mean_of_images(item) or item.refs()[0] not in self._place or len(self._shapes[item.name]) != 4:
            return False
        if self._dims[item.refs()[0]] != 4:
            return False
        source, target = item.refs()[0], self._layouts.of(item.name)
        self._place[item.name] = self._take(target)
        where = (self._place[source], self._layouts.of(source), self._place[item.name], target)
        self._add(item.name, ImageMean(*where, self._threads))
        return True


def _joined(steps: Sequence[BoundStep]) -> list[BoundStep]:
    """The steps, with consecutive ones of the core joined into one."""
    found: list[BoundStep] = []
    native: list[NativeCall] = []
    for step in steps:
        if isinstance(step, NativeCall):
            native.append(step)
            continue
        found += [together(native), step] if native else [step]
        native = []
    return [*found, together(native)] if native else found


def _pool_settings(item: Operation) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]] | None:
    """The kernel, stride and padding of a plain max pool; None for any other operation."""
    if item.target is not aten.max_pool2d.default or item.kwargs:
        return None
    defaults: list[Any] = [None, [], [0, 0], [1, 1], False]
    kernel, stride, padding, dilation, _ = [*item.args[1:], *defaults[len(item.args) - 1 :]]
    if set(dilation) != {1}:
        return None
    stride = stride or kernel
    pairs = [(int(values[0]), int(values[-1])) for values in (kernel, stride, padding)]
    return pairs[0], pairs[1], pairs[2]
