"""The steps of a plan: they read and write values (torch's tensors, by name) and buffers (by number)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from pof.core.structures import CopyStruct, PoolStruct
from pof.errors import PofError
from pof.runtime.image_geometry import Geometry, Phases
from pof.runtime.kernel_calls import NativeCall
from pof.runtime.program import Layer, Operation, Ref
from pof.runtime.sparse_conv import ConvSpec, SparseConv

NamedValues = dict[str, Any]
Buffers = list[Tensor]
LayerWeights = Mapping[str, tuple[Tensor, Tensor]]
"""The weight and bias of each layer, by its name."""


BoundStep = Callable[[NamedValues], object]
CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


class UnforeseenError(PofError):
    """A value does not fit the plan, as its size depends on the data: torch has to run the model."""


class ExecutionStep(Protocol):
    """One step of a plan."""

    def bind(self, buffers: Buffers) -> BoundStep:
        """A function of the values that runs the step in the memory of one thread."""


@dataclass(frozen=True)
class TorchOperation:
    """A torch operation, unchanged from the model."""

    operation: Operation

    def bind(self, buffers: Buffers) -> BoundStep:
        """Call the operation."""
        operation = self.operation
        if operation.kwargs or any(isinstance(arg, (list, tuple, dict)) for arg in operation.args):
            resolved = bound_call(operation)
            return lambda values: values.__setitem__(operation.name, resolved(values))
        # Skip the search for values inside lists of arguments: it takes longer than many operations do.
        places = [(isinstance(arg, Ref), arg.name if isinstance(arg, Ref) else arg) for arg in operation.args]

        def run(values: NamedValues) -> None:
            values[operation.name] = operation.target(*(values[arg] if is_ref else arg for is_ref, arg in places))

        return run


@dataclass(frozen=True)
class TorchLayer:
    """A layer that torch's own dense kernels compute."""

    layer: Layer
    weights: LayerWeights

    def bind(self, buffers: Buffers) -> BoundStep:
        """Compute the layer."""
        name = self.layer.name
        return lambda values: values.__setitem__(name, dense(self.layer, self.weights[name], values))


@dataclass(frozen=True)
class CopyIn:
    """Copy a tensor's images to where a kernel expects them."""

    source: str
    shape: tuple[int, ...]
    buffer: int
    target: Geometry | Phases
    spec: ConvSpec | None
    """The strided convolution whose input this is; None for any other."""
    size: tuple[int, int]
    """How many rows and columns to copy at most."""
    threads: int

    def bind(self, buffers: Buffers) -> BoundStep:
        """Copy the images."""
        lanes, buffer = self.target.lanes, buffers[self.buffer]

        def run(values: NamedValues) -> None:
            images, from_ = _images(values[self.source], self.shape, lanes)
            struct = copy_struct(from_, buffer, self.target, self.spec, images.shape, self.size, self.threads)
            NativeCall("pof_copy_planes", struct, (images,))()

        return run


@dataclass(frozen=True)
class CopyAcross:
    """Copy images from one buffer to another, split by phases."""

    source: int
    geometry: Geometry
    buffer: int
    target: Geometry | Phases
    spec: ConvSpec
    size: tuple[int, int]
    threads: int

    def bind(self, buffers: Buffers) -> BoundStep:
        """Copy the images."""
        of = self.geometry
        from_, shape = _planes(of, buffers[self.source])
        struct = copy_struct(from_, buffers[self.buffer], self.target, self.spec, shape, self.size, self.threads)
        return NativeCall("pof_copy_planes", struct, (buffers,))


@dataclass(frozen=True)
class Convolve:
    """A sparse convolution."""

    kernel: SparseConv
    source: int
    residual: int | None
    out: int

    def bind(self, buffers: Buffers) -> BoundStep:
        """Compute the convolution."""
        residual = None if self.residual is None else buffers[self.residual]
        return self.kernel.bind(buffers[self.source], residual, buffers[self.out])


@dataclass(frozen=True)
class SparseLinear:
    """A linear layer as a convolution, with one pixel per row of its input."""

    layer: Layer
    spec: Mapping[str, ConvSpec]
    kernels: dict[int, SparseConv]
    threads: int

    def bind(self, buffers: Buffers) -> BoundStep:
        """Compute the layer."""
        return self._run

    def _run(self, values: NamedValues) -> None:
        rows, spec = values[self.layer.source].resolve_neg(), self.spec[self.layer.name]
        if rows.dtype is not torch.float32 or not rows.numel():
            raise UnforeseenError
        flat = rows.reshape(-1, rows.shape[-1])
        count = len(flat)
        source = Geometry(1, flat.shape[1], 1, count, 0, 0, count, 1)
        out = Geometry(1, len(spec.weight), 1, count, 0, 0, count, 1)
        if count not in self.kernels:
            self.kernels[count] = SparseConv(spec, source, out, self.threads)
        inside, outside = source.buffer(), out.buffer()
        source.view(inside)[0, :, 0].copy_(flat.t())
        self.kernels[count](inside, None, outside)
        values[self.layer.name] = out.view(outside)[0, :, 0].t().reshape(*rows.shape[:-1], -1)


@dataclass(frozen=True)
class MaxPool:
    """A max pool from a tensor or a buffer to a buffer."""

    source: str | int
    geometry: Geometry
    """The geometry of the source if that is a buffer, else one of the same sizes."""
    buffer: int
    target: Geometry
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    threads: int

    def bind(self, buffers: Buffers) -> BoundStep:
        """Pool the images."""
        of = self.geometry
        if isinstance(self.source, int):
            return NativeCall("pof_max_pool", self._struct(_planes(of, buffers[self.source])[0], buffers), (buffers,))
        source = self.source

        def run(values: NamedValues) -> None:
            shape = (of.images, of.channels, of.height, of.width)
            kept, from_ = _images(values[source], shape, self.target.lanes)
            NativeCall("pof_max_pool", self._struct(from_, buffers), (kept,))()

        return run

    def _struct(self, from_: tuple[int, ...], buffers: Buffers) -> PoolStruct:
        of, target = self.geometry, self.target
        shape = (of.images, of.channels, of.height, of.width)
        size = (of.height, of.width)
        planes = copy_struct(from_, buffers[self.buffer], target, None, shape, size, self.threads)
        return PoolStruct(planes, *self.kernel, *self.stride, *self.padding, target.height, target.width)


@dataclass(frozen=True)
class ImageMean:
    """The mean of each plane of a buffer, as an image of one pixel."""

    source: int
    geometry: Geometry
    buffer: int
    target: Geometry
    threads: int

    def bind(self, buffers: Buffers) -> BoundStep:
        """Take the mean."""
        of = self.geometry
        from_, shape = _planes(of, buffers[self.source])
        place = (buffers[self.buffer], self.target, None, shape, (of.height, of.width), self.threads)
        return NativeCall("pof_mean_planes", copy_struct(from_, *place), (buffers,))


@dataclass(frozen=True)
class ShowTensor:
    """Show the images of a buffer to torch as a tensor."""

    name: str
    buffer: int
    geometry: Geometry
    dims: int
    """The dimensions of the tensor: a line has no height, a feature no width either."""

    def bind(self, buffers: Buffers) -> BoundStep:
        """Make the tensor."""
        name, of, buffer = self.name, self.geometry, buffers[self.buffer]

        def look() -> Tensor:
            images = of.view(buffer)
            return images if self.dims == 4 else images[:, :, 0] if self.dims == 3 else images[:, :, 0, 0]

        if of.is_view:
            view = look()
            return lambda values: values.__setitem__(name, view)
        return lambda values: values.__setitem__(name, look())


def _images(value: Any, shape: tuple[int, ...], lanes: int) -> tuple[Tensor, tuple[int, ...]]:
    """Images that torch has made, and where they lie: pointer and strides."""
    if isinstance(value, Tensor) and value.dim() < 4 and set(shape[2 : 6 - value.dim()]) == {1}:
        # Features or lines that a plan holds as images of height one, but that torch made.
        value = value[:, :, None, None] if value.dim() == 2 else value[:, :, None]
    if not isinstance(value, Tensor) or value.dtype is not torch.float32 or tuple(value.shape) != shape:
        raise UnforeseenError
    images = value.resolve_neg()
    image, channel, row, column = images.stride()
    return images, (images.data_ptr(), image * lanes, image, channel, row, column)


def _planes(of: Geometry, buffer: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Where the images of a buffer lie (pointer and strides), and their shape."""
    start = buffer.data_ptr() + 4 * of.base
    from_ = (start, of.block, 1, of.plane, of.pitch * of.lanes, of.lanes)
    return from_, (of.images, of.channels, of.height, of.width)


def copy_struct(
    source: tuple[int, ...],
    buffer: Tensor,
    target: Geometry | Phases,
    spec: ConvSpec | None,
    shape: tuple[int, ...] | torch.Size,
    size: tuple[int, int],
    threads: int,
) -> CopyStruct:
    """The argument of `pof_copy_planes`, for a copy from a pointer with strides to a buffer."""
    images, channels, height, width = shape
    if spec is not None and spec.picks:
        # Copy one pixel of each window, and step over the others.
        pointer, block, lane, channel, row, column = source
        source = (pointer, block, lane, channel, row * spec.stride[0], column * spec.stride[1])
        height, width = size
    if isinstance(target, Phases):
        assert spec is not None
        place = (target.phase, target.pitch, target.lanes, *spec.padding, *spec.stride)
    else:
        place = (0, target.pitch, target.lanes, target.pad_y, target.pad_x, 1, 1)
    to = (buffer.data_ptr(), target.block, target.plane, *place)
    return CopyStruct(*source, *to, images, channels, min(height, size[0]), min(width, size[1]), threads)


def bound_call(operation: Operation) -> Callable[[Mapping[str, Any]], Any]:
    """The call of an operation of torch, for given values. Lists of arguments are looked through once, not per call."""
    args = [_resolver(arg) for arg in operation.args]
    kwargs = {name: _resolver(arg) for name, arg in operation.kwargs.items()}
    target = operation.target

    def run(values: Mapping[str, Any]) -> Any:
        return target(*[arg(values) for arg in args], **{name: arg(values) for name, arg in kwargs.items()})

    return run


def _resolver(arg: Any) -> Callable[[Mapping[str, Any]], Any]:
    """A function of the values that gives an argument, with the values that it refers to filled in."""
    if isinstance(arg, Ref):
        name = arg.name
        return lambda values: values[name]
    if any(isinstance(leaf, Ref) for leaf in pytree.tree_leaves(arg)):
        if type(arg) in (list, tuple):
            parts, kind = [_resolver(part) for part in arg], type(arg)
            return lambda values: kind([part(values) for part in parts])
        return lambda values: pytree.tree_map(lambda leaf: values[leaf.name] if isinstance(leaf, Ref) else leaf, arg)
    return lambda values: arg


def dense(layer: Layer, weights: tuple[Tensor, Tensor], values: Mapping[str, Any]) -> Tensor:
    """Compute a layer with torch."""
    source = values[layer.source]
    if layer.kind == "linear":
        found = F.linear(source, *weights)
    else:
        found = CONVOLUTIONS[layer.dims](source, *weights, *layer.settings(), layer.groups)
    if layer.residual is not None:
        found = found.add_(values[layer.residual])
    if layer.low == 0.0 and layer.high == float("inf"):
        return found.relu_()
    return found if layer.low == -layer.high == -float("inf") else found.clamp_(layer.low, layer.high)
