"""What a plan is made of: steps that read and write values (torch's tensors, by name) and buffers (by number)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from pof.runtime.capture import Layer, Operation, Ref
from pof.runtime.geometry import Geometry, Phases
from pof.runtime.kernels import CopyStruct, PoolStruct, copy_planes, max_pool
from pof.runtime.sparse_conv import ConvSpec, SparseConv

Values = dict[str, Any]
Buffers = list[Tensor]


class Step(Protocol):
    """One thing to do."""

    def run(self, values: Values, buffers: Buffers) -> None:
        """Do it."""


@dataclass(frozen=True)
class Call:
    """An operation of torch, as it was in the model."""

    operation: Operation

    def run(self, values: Values, buffers: Buffers) -> None:
        """Call it."""
        values[self.operation.name] = call(self.operation, values)


@dataclass(frozen=True)
class TorchLayer:
    """A layer by torch's own dense kernels."""

    layer: Layer
    weights: Mapping[str, tuple[Tensor, Tensor]]

    def run(self, values: Values, buffers: Buffers) -> None:
        """Compute it."""
        values[self.layer.name] = dense(self.layer, self.weights[self.layer.name], values)


@dataclass(frozen=True)
class CopyIn:
    """A tensor's images to where a kernel wants them."""

    source: str
    buffer: int
    target: Geometry | Phases
    spec: ConvSpec | None
    """The convolution whose phases they are."""
    size: tuple[int, int]
    """Rows and columns that are wanted."""
    threads: int

    def run(self, values: Values, buffers: Buffers) -> None:
        """Copy them."""
        images = values[self.source]
        image, channel, row, column = images.stride()
        lanes = self.target.lanes
        from_ = (images.data_ptr(), image * lanes, image, channel, row, column)
        copy_planes(
            copy_struct(from_, buffers[self.buffer], self.target, self.spec, images.shape, self.size), self.threads
        )


@dataclass(frozen=True)
class CopyAcross:
    """Images in one buffer to another, split by phases."""

    source: int
    geometry: Geometry
    buffer: int
    target: Geometry | Phases
    spec: ConvSpec
    size: tuple[int, int]
    threads: int

    def run(self, values: Values, buffers: Buffers) -> None:
        """Copy them."""
        of = self.geometry
        start = buffers[self.source].data_ptr() + 4 * of.base
        from_ = (start, of.block, 1, of.plane, of.pitch * of.lanes, of.lanes)
        shape = (of.images, of.channels, of.height, of.width)
        copy_planes(copy_struct(from_, buffers[self.buffer], self.target, self.spec, shape, self.size), self.threads)


@dataclass(frozen=True)
class Convolve:
    """A sparse convolution."""

    kernel: SparseConv
    source: int
    residual: int | None
    out: int

    def run(self, values: Values, buffers: Buffers) -> None:
        """Compute it."""
        residual = None if self.residual is None else buffers[self.residual]
        self.kernel(buffers[self.source], residual, buffers[self.out])


@dataclass(frozen=True)
class SparseLinear:
    """A linear layer as a convolution of one pixel a row of its input."""

    layer: Layer
    spec: Mapping[str, ConvSpec]
    kernels: dict[int, SparseConv]
    threads: int

    def run(self, values: Values, buffers: Buffers) -> None:
        """Compute it."""
        rows = values[self.layer.source]
        flat = rows.reshape(-1, rows.shape[-1])
        count, spec = len(flat), self.spec[self.layer.name]
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
    """A pool from one place to a buffer."""

    source: str | int
    geometry: Geometry
    """Of the source, if that is a buffer; else of the same sizes."""
    buffer: int
    target: Geometry
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    threads: int

    def run(self, values: Values, buffers: Buffers) -> None:
        """Pool."""
        of, target = self.geometry, self.target
        if isinstance(self.source, int):
            start = buffers[self.source].data_ptr() + 4 * of.base
            from_ = (start, of.block, 1, of.plane, of.pitch * of.lanes, of.lanes)
        else:
            images = values[self.source]
            image, channel, row, column = images.stride()
            from_ = (images.data_ptr(), image * target.lanes, image, channel, row, column)
        shape = (of.images, of.channels, of.height, of.width)
        planes = copy_struct(from_, buffers[self.buffer], target, None, shape, (of.height, of.width))
        sizes = (*self.kernel, *self.stride, *self.padding, target.height, target.width)
        max_pool(PoolStruct(planes, *sizes), self.threads)


@dataclass(frozen=True)
class Show:
    """The images of a buffer as a tensor of torch."""

    name: str
    buffer: int
    geometry: Geometry

    def run(self, values: Values, buffers: Buffers) -> None:
        """Look at them."""
        values[self.name] = self.geometry.view(buffers[self.buffer])


def copy_struct(
    source: tuple[int, ...],
    buffer: Tensor,
    target: Geometry | Phases,
    spec: ConvSpec | None,
    shape: tuple[int, ...] | torch.Size,
    size: tuple[int, int],
) -> CopyStruct:
    """What `pof_copy_planes` wants: from pointer and strides to a buffer."""
    images, channels, height, width = shape
    if spec is not None and spec.picks:
        # One pixel of each window: the others are stepped over.
        pointer, block, lane, channel, row, column = source
        source = (pointer, block, lane, channel, row * spec.stride[0], column * spec.stride[1])
        height, width = size
    if isinstance(target, Phases):
        assert spec is not None
        place = (target.phase, target.pitch, target.lanes, *spec.padding, *spec.stride)
    else:
        place = (0, target.pitch, target.lanes, target.pad_y, target.pad_x, 1, 1)
    to = (buffer.data_ptr(), target.block, target.plane, *place)
    return CopyStruct(*source, *to, images, channels, min(height, size[0]), min(width, size[1]))


def call(operation: Operation, values: Mapping[str, Any]) -> Any:
    """Run an operation of torch."""

    def value(leaf: Any) -> Any:
        return values[leaf.name] if isinstance(leaf, Ref) else leaf

    args, kwargs = pytree.tree_map(value, operation.args), pytree.tree_map(value, dict(operation.kwargs))
    return operation.target(*args, **kwargs)


def dense(layer: Layer, weights: tuple[Tensor, Tensor], values: Mapping[str, Any]) -> Tensor:
    """Compute a layer with torch."""
    source = values[layer.source]
    if layer.kind == "linear":
        found = F.linear(source, *weights)
    else:
        found = F.conv2d(source, *weights, layer.stride, layer.padding, layer.dilation, layer.groups)
    if layer.residual is not None:
        found = found.add_(values[layer.residual])
    if layer.low == 0.0 and layer.high == float("inf"):
        return found.relu_()
    return found if layer.low == -layer.high == -float("inf") else found.clamp_(layer.low, layer.high)
