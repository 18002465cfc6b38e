"""How images lie in memory for the sparse kernels.

A plane (one channel) stores its rows one after the other, with padding between them: the `pad_x` zeros after a row
are also the zeros before the next. So a kernel's tap is the same distance away from every pixel, and a convolution is a
flat pass over the plane. Eight or sixteen images may lie side by side (`lanes`): a pixel is then that many floats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pof.core.large_buffers import fresh_parts

LANES = 8
"""The floats in a vector."""
LINE = 16
"""The floats in a cache line."""
SLACK = 128
"""The floats past the end that a kernel may read or write, without any effect."""


@dataclass(frozen=True)
class Geometry:
    """How a batch of images lies in a buffer of `floats` floats."""

    images: int
    channels: int
    height: int
    width: int
    pad_y: int
    pad_x: int
    pitch: int
    """The pixels from one row to the next: at least width + pad_x."""
    lanes: int

    @property
    def blocks(self) -> int:
        """The number of images, or of groups of images that lie side by side."""
        return -(-self.images // self.lanes)

    @property
    def plane(self) -> int:
        """The floats from one channel to the next."""
        return _spread((self.height + 2 * self.pad_y) * self.pitch * self.lanes + self.pad_x * self.lanes + LANES)

    @property
    def base(self) -> int:
        """The floats from the start of a plane to its first pixel."""
        return (self.pad_y * self.pitch + self.pad_x) * self.lanes

    @property
    def block(self) -> int:
        """The floats from one block to the next."""
        return self.channels * self.plane

    @property
    def floats(self) -> int:
        """The floats in the whole buffer."""
        return self.blocks * self.block + SLACK

    @property
    def is_view(self) -> bool:
        """Whether torch can view the images in place."""
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
    """How the input of one strided convolution lies: one plane for each residue of row and column.

    It is like a `Geometry` with the convolution's own padding, but pixel (y, x) lies at (y // stride, x // stride) in
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
        """The number of blocks, as in `Geometry`."""
        return -(-self.images // self.lanes)

    @property
    def phase(self) -> int:
        """The floats from one phase to the next."""
        return _spread(self.rows * self.pitch * self.lanes + LANES)

    @property
    def plane(self) -> int:
        """The floats from one channel to the next."""
        return self.stride_y * self.stride_x * self.phase

    @property
    def block(self) -> int:
        """The floats from one block to the next."""
        return self.channels * self.plane

    @property
    def floats(self) -> int:
        """The floats in the whole buffer."""
        return self.blocks * self.block + SLACK

    def buffer(self) -> Tensor:
        """A buffer of zeros."""
        return buffers([self])[0]


def buffers(places: Sequence[Geometry | Phases]) -> list[Tensor]:
    """Buffers of zeros in one block of memory with large pages: planes are so far apart that small pages are slow."""
    return [torch.from_numpy(part).view(torch.float32) for part in fresh_parts([4 * place.floats for place in places])]


def lanes_for(images: int) -> int:
    """How many images to lay side by side: 1 below 8 images, else 8 or 16, whichever leaves fewer empty places."""
    if images < LANES:
        return 1
    return 16 if -(-images // 16) * 16 <= -(-images // 8) * 8 else 8


def _spread(count: int) -> int:
    """`count` rounded up to an odd number of cache lines, so that planes do not compete for the same cache sets."""
    return LINE * (-(-count // LINE) | 1)
