"""How images lie in memory for the sparse kernels.

A plane (one channel) has its rows one after the other, with room for padding between them: the `pad_x` zeros after a
row are also those before the next. So a kernel's tap is the same distance away for every pixel, and a convolution is a
flat pass over the plane. Eight or sixteen images may lie side by side (`lanes`): then a pixel is that many floats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pof.core.large_buffers import fresh_parts

LANES = 8
"""Floats of a vector."""
LINE = 16
"""Floats of a line of the cache."""
SLACK = 128
"""Floats behind the end that a kernel may read or write, but that mean nothing."""


@dataclass(frozen=True)
class Geometry:
    """The place of a batch of images in a buffer; `floats` of them."""

    images: int
    channels: int
    height: int
    width: int
    pad_y: int
    pad_x: int
    pitch: int
    """Pixels from one row to the next: at least width + pad_x."""
    lanes: int

    @property
    def blocks(self) -> int:
        """Images, or groups of images that lie side by side."""
        return -(-self.images // self.lanes)

    @property
    def plane(self) -> int:
        """Floats from one channel to the next."""
        return _spread((self.height + 2 * self.pad_y) * self.pitch * self.lanes + self.pad_x * self.lanes + LANES)

    @property
    def base(self) -> int:
        """Floats from the start of a plane to its first pixel."""
        return (self.pad_y * self.pitch + self.pad_x) * self.lanes

    @property
    def block(self) -> int:
        """Floats from one block to the next."""
        return self.channels * self.plane

    @property
    def floats(self) -> int:
        """Floats of the whole buffer."""
        return self.blocks * self.block + SLACK

    @property
    def is_view(self) -> bool:
        """Whether torch can look at the images where they are."""
        return self.lanes == 1 or self.blocks == 1

    def buffer(self) -> Tensor:
        """A buffer of zeros."""
        return buffers([self])[0]

    def view(self, buffer: Tensor) -> Tensor:
        """The images in `buffer` as (N, C, H, W): a view where torch can make one, else a copy."""
        size = (self.blocks, self.lanes, self.channels, self.height, self.width)
        strides = (self.block, 1, self.plane, self.pitch * self.lanes, self.lanes)
        return buffer.as_strided(size, strides, self.base).flatten(0, 1)[: self.images]


@dataclass(frozen=True)
class Phases:
    """The place of the input of one convolution with a stride: a plane for each residue of row and column.

    Like a `Geometry` with the convolution's own padding, of which pixel (y, x) is at (y // stride, x // stride) of
    plane (y % stride, x % stride).
    """

    images: int
    channels: int
    rows: int
    pitch: int
    lanes: int
    stride_y: int
    stride_x: int

    @property
    def blocks(self) -> int:
        """As in `Geometry`."""
        return -(-self.images // self.lanes)

    @property
    def phase(self) -> int:
        """Floats from one phase to the next."""
        return _spread(self.rows * self.pitch * self.lanes + LANES)

    @property
    def plane(self) -> int:
        """Floats from one channel to the next."""
        return self.stride_y * self.stride_x * self.phase

    @property
    def block(self) -> int:
        """Floats from one block to the next."""
        return self.channels * self.plane

    @property
    def floats(self) -> int:
        """Floats of the whole buffer."""
        return self.blocks * self.block + SLACK

    def buffer(self) -> Tensor:
        """A buffer of zeros."""
        return buffers([self])[0]


def buffers(places: Sequence[Geometry | Phases]) -> list[Tensor]:
    """Buffers of zeros, in one piece of memory of large pages: planes are so far apart that small ones are slow."""
    return [torch.from_numpy(part).view(torch.float32) for part in fresh_parts([4 * place.floats for place in places])]


def lanes_for(images: int) -> int:
    """How many images to lay side by side: none below 8, else 8 or 16, whichever leaves fewer empty places."""
    if images < LANES:
        return 1
    return 16 if -(-images // 16) * 16 <= -(-images // 8) * 8 else 8


def _spread(count: int) -> int:
    """At least `count` floats: an odd number of lines, so that planes do not share the same few places in the cache."""
    return LINE * (-(-count // LINE) | 1)
