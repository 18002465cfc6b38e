"""Three-dimensional convolutions by the kernel for images: the slices of a volume are its images.

Slice z of the output depends on a few slices of the input, always the same distance from z. So the kernel runs over
the output's slices as over a batch, and each depth of the weight counts as so many more input channels.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pof.runtime.execution_steps import BoundStep, Buffers, NamedValues, UnforeseenError, copy_struct
from pof.runtime.image_geometry import Geometry, Phases
from pof.runtime.kernel_calls import NativeCall
from pof.runtime.program import Layer
from pof.runtime.sparse_conv import ConvSpec, SparseConv


def volume_geometries(
    layer: Layer, spec: ConvSpec, source: tuple[int, ...], out: tuple[int, ...]
) -> tuple[Geometry | Phases, Geometry]:
    """How one sample's input and output lie: each channel is an image whose channels are the slices."""
    assert layer.depth is not None
    _, channels, slices, height, width = source
    _, out_channels, out_slices, out_height, out_width = out
    padded, (pad_y, pad_x) = slices + 2 * layer.depth.padding, spec.padding
    pitch = out_width + spec.reach[1] // spec.stride[1] if spec.strided else max(width + pad_x, out_width)
    target = Geometry(out_channels, out_slices, out_height, out_width, 0, 0, pitch, 1)
    if spec.strided:
        return spec.phases(channels, padded, target), target
    return Geometry(channels, padded, height, width, pad_y, pad_x, pitch, 1), target


@dataclass(frozen=True)
class SparseVolume:
    """A three-dimensional convolution, one sample after the other."""

    layer: Layer
    spec: ConvSpec
    shape: tuple[int, ...]
    buffer: int
    source: Geometry | Phases
    out_buffer: int
    out: Geometry
    threads: int

    def bind(self, buffers: Buffers) -> BoundStep:
        """Compute the layer."""
        inside, outside, depth = buffers[self.buffer], buffers[self.out_buffer], self.layer.depth
        assert depth is not None
        kernel = SparseConv(self.spec, self.source, self.out, self.threads, depth).bind(inside, None, outside)
        size = self.spec.needed(self.out) if self.spec.strided else self.shape[3:]
        first = inside[depth.padding * self.source.plane :]
        out = self.out.view(outside)

        def run(values: NamedValues) -> None:
            volumes = self._checked(values[self.layer.source])
            found = torch.empty((len(volumes), *out.shape))
            for volume, result in zip(volumes, found, strict=True):
                channel, slice_, row, column = volume.stride()
                from_ = (volume.data_ptr(), channel, channel, slice_, row, column)
                place = (first, self.source, self.spec, volume.shape, (size[0], size[1]), self.threads)
                NativeCall("pof_copy_planes", copy_struct(from_, *place), (volume,))()
                kernel()
                result.copy_(out)
            values[self.layer.name] = found

        return run

    def _checked(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.dtype is not torch.float32 or tuple(value.shape) != self.shape:
            raise UnforeseenError
        return value.resolve_neg()
