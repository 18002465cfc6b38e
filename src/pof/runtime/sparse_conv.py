"""One convolution for one size of input: its taps, its tiles, and the call to the kernel."""

import ctypes
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pof.core.library import address
from pof.core.structures import ConvCallStruct, ConvStruct
from pof.runtime.image_geometry import LANES, Geometry, Phases
from pof.runtime.kernel_calls import NativeCall, taps_of

MOST_VECTORS = 14
"""The most vectors in a tile: as many sums as fit in registers."""
CACHE = 24 * 1024
"""The bytes of input that a block of channels may touch in a tile, so that they stay in the L1 cache."""
SHARES = 4
"""How many parts of the work there are for each thread."""
LEAST_CHANNELS = 32
"""The fewest channels in a part, if the layer has that many."""
LARGE = 256 * 1024
"""From this many bytes of taps on, one pass over the taps for all tiles beats one pass for each tile."""


class Depth(NamedTuple):
    """What a three-dimensional convolution does along its first dimension."""

    size: int
    stride: int
    padding: int
    dilation: int


@dataclass(frozen=True)
class ConvSpec:
    """What a convolution computes, with BatchNorm already folded in."""

    weight: NDArray[np.float32]
    """Its shape is (output channels, input channels per group, height, width)."""
    bias: NDArray[np.float32]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    low: float = -inf
    high: float = inf

    @property
    def strided(self) -> bool:
        """Whether its input must be split into phases."""
        return self.stride != (1, 1)

    @property
    def picks(self) -> bool:
        """Whether it is strided and reads one pixel of each window, so that the others need not be copied."""
        return self.strided and self.weight.shape[2:] == (1, 1) and self.padding == (0, 0)

    @property
    def reach(self) -> tuple[int, int]:
        """The rows and columns from the first tap to the last."""
        _, _, height, width = self.weight.shape
        return (height - 1) * self.dilation[0], (width - 1) * self.dilation[1]

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of the output."""
        (reach_y, reach_x), (pad_y, pad_x) = self.reach, self.padding
        rows, columns = height + 2 * pad_y - reach_y - 1, width + 2 * pad_x - reach_x - 1
        return rows // self.stride[0] + 1, columns // self.stride[1] + 1

    def needed(self, out: Geometry) -> tuple[int, int]:
        """How many rows and columns of the input the output depends on; some at the end may be unused."""
        if self.picks:
            return out.height, out.width
        rows, columns = (out.height - 1) * self.stride[0], (out.width - 1) * self.stride[1]
        return rows + self.reach[0] + 1 - self.padding[0], columns + self.reach[1] + 1 - self.padding[1]

    def phases(self, images: int, channels: int, out: Geometry) -> Geometry | Phases:
        """How its input lies if it is strided; rows are as far apart as those of the output."""
        if self.picks:
            return Geometry(images, channels, out.height, out.width, 0, 0, out.pitch, out.lanes)
        rows = out.height + self.reach[0] // self.stride[0]
        return Phases(images, channels, rows, out.pitch, out.lanes, *self.stride)


class SparseConv:
    """A convolution from a buffer of one geometry to a buffer of another, with the same pitch."""

    def __init__(
        self, spec: ConvSpec, source: Geometry | Phases, out: Geometry, threads: int, depth: Depth | None = None
    ) -> None:
        """With `depth`, each image of the geometries is one channel of a volume, and its channels are the slices."""
        self._source, self._out, self._threads = source, out, threads
        if depth is None:
            self._images, self._in_images, self._out_images = out.blocks, source.block, out.block
            out_stride = out.plane
        else:
            self._images, self._in_images, self._out_images = out.channels, depth.stride * source.plane, out.plane
            out_stride = out.block
        self._tile_out, self._vectors = _tiles(out)
        self._struct = ConvStruct(
            channels=len(spec.weight),
            tiles=len(self._tile_out),
            out_stride=out_stride,
            rows=out.height,
            pitch=out.pitch * out.lanes,
            first_gap=out.base + out.width * out.lanes,
            # Rows of images side by side fill whole tiles. Single images overrun, at the end by less than a vector.
            gap=0 if out.lanes > 1 else out.pitch - out.width,
            last_gap=0 if out.lanes > 1 else max(out.pitch - out.width, LANES),
            low=spec.low,
            high=spec.high,
        )
        self._pack(spec, depth)

    def _pack(self, spec: ConvSpec, depth: Depth | None) -> None:
        """Pack the weights as the kernel reads them."""
        channels, length = len(spec.weight), int(np.prod(spec.weight.shape[1:]))
        offsets, start = _offsets(spec, self._source, depth)
        places = _blocks(spec, self._source, int(self._vectors.max()) * LANES)
        weight = np.ascontiguousarray(spec.weight.reshape(channels, length), np.float32)
        self._taps, self._starts = taps_of(weight, offsets, places)
        self._bias = np.ascontiguousarray(spec.bias, np.float32)
        self._tile_in = self._tile_out - self._out.base + start
        struct = self._struct
        struct.blocks = len(places) - 1
        struct.dense = int(spec.groups == 1 and len(self._taps) - 1 == weight.size)
        struct.blocks_outside = int(8 * len(self._taps) > LARGE)
        for name in ("taps", "starts", "bias", "tile_in", "tile_out"):
            setattr(struct, name, address(getattr(self, f"_{name}")))
        struct.tile_vectors = address(self._vectors)
        self._parts = _parts(self._starts, len(self._tile_out), self._images, self._threads)

    def __call__(self, source: Tensor, residual: Tensor | None, out: Tensor, *, plain: bool = False) -> None:
        """Run the convolution; a residual lies in memory like the output."""
        self.bind(source, residual, out, plain=plain)()

    def bind(self, source: Tensor, residual: Tensor | None, out: Tensor, *, plain: bool = False) -> NativeCall:
        """The call to the kernel for these buffers."""
        struct = ConvCallStruct(
            conv=ctypes.addressof(self._struct),
            source=source.data_ptr(),
            residual=None if residual is None else residual.data_ptr(),
            out=out.data_ptr(),
            images=self._images,
            in_images=self._in_images,
            out_images=self._out_images,
            count=len(self._parts),
            parts=address(self._parts),
            threads=self._threads,
            plain=int(plain),
        )
        return NativeCall("pof_sparse_conv", struct, (self, source, residual, out))


def _tiles(out: Geometry) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the tiles of a plane begin, and how many vectors each has: as even as possible, never more than fit."""
    if out.lanes > 1:
        rows = np.arange(out.height) * out.pitch * out.lanes
        count = out.width * out.lanes // LANES
    else:
        rows = np.zeros(1, np.int64)
        count = -(-((out.height - 1) * out.pitch + out.width) // LANES)
    tiles = -(-count // MOST_VECTORS)
    ends = np.arange(tiles + 1) * count // tiles
    starts = (rows[:, None] + LANES * ends[:-1]).reshape(-1)
    return (out.base + starts).astype(np.int64), np.tile(np.diff(ends), len(rows)).astype(np.int64)


def _offsets(spec: ConvSpec, source: Geometry | Phases, depth: Depth | None) -> tuple[NDArray[np.int32], int]:
    """For each group, the bytes from an output to each tap; and the floats from a plane's start to the first tap."""
    _, channels, height, width = spec.weight.shape
    lanes, start = source.lanes, 0
    y, x = np.arange(height) * spec.dilation[0], np.arange(width) * spec.dilation[1]
    if isinstance(source, Phases):
        (sy, sx) = spec.stride
        rows, columns = y // sy * source.pitch, x // sx
        inside = (rows[:, None] + columns) * lanes + (y[:, None] % sy * sx + x % sx) * source.phase
    else:
        inside = (y[:, None] * source.pitch + x) * lanes
        start = ((source.pad_y - spec.padding[0]) * source.pitch + source.pad_x - spec.padding[1]) * lanes
    planes = np.arange(spec.groups * channels) * source.plane
    if depth is not None:
        slices = np.arange(depth.size) * depth.dilation * source.plane
        planes = np.arange(spec.groups * channels // depth.size)[:, None] * source.block + slices
    found = 4 * (planes.reshape(spec.groups, channels, 1, 1) + inside)
    return np.ascontiguousarray(found.reshape(spec.groups, -1), np.int32), start


def _blocks(spec: ConvSpec, source: Geometry | Phases, tile: int) -> NDArray[np.int64]:
    """Where the blocks of input channels begin in a row of the weight, and where the row ends."""
    _, channels, height, width = spec.weight.shape
    (reach_y, reach_x), lanes = spec.reach, source.lanes
    apart = height * (tile + reach_x * lanes)
    together = tile + (reach_y * source.pitch + reach_x) * lanes
    bytes_each = 4 * (apart if isinstance(source, Phases) else min(apart, together))
    blocks = min(channels, -(-channels * bytes_each // CACHE)) if spec.groups == 1 else 1
    starts: NDArray[np.int64] = np.arange(blocks + 1, dtype=np.int64) * channels // blocks * (height * width)
    return starts


def _parts(starts: NDArray[np.int32], tiles: int, images: int, threads: int) -> NDArray[np.int64]:
    """The parts of the work on one image: the first and the end of its channels, then of its tiles.

    There are more parts than threads, as threads are not always equally fast. Tiles are split rather than channels:
    what a tile reads is then brought into the cache only once.
    """
    channels = starts.shape[1] - 1
    wanted = 1 if images >= SHARES * threads or threads == 1 else SHARES * threads
    if tiles >= wanted:
        ends = np.arange(wanted + 1) * tiles // wanted
        return np.array([[0, channels, first, end] for first, end in pairwise(ends.tolist())], np.int64)
    work = np.diff(starts, axis=1).sum(0).cumsum() + np.arange(1, channels + 1)
    wanted = max(min(wanted, channels // LEAST_CHANNELS), min(threads, channels))
    ends = np.searchsorted(work, work[-1] * np.arange(1, wanted) / wanted) + 1
    return np.array([[first, end, 0, tiles] for first, end in pairwise([0, *ends.tolist(), channels])], np.int64)
