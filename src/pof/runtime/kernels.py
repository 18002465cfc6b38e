"""The compiled kernels: structures as the C core has them (core/sparse.c, core/planes.c), and calls."""

import ctypes
from collections.abc import Callable
from ctypes import c_float, c_int64, c_void_p
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from pof.errors import PofError
from pof.native import address, core, int64

TAP = np.dtype([("offset", np.int32), ("weight", np.float32)])


class ConvStruct(ctypes.Structure):
    """`Conv` of sparse.c."""

    _fields_ = [
        ("taps", c_void_p), ("starts", c_void_p), ("bias", c_void_p),
        ("tile_in", c_void_p), ("tile_out", c_void_p), ("tile_vectors", c_void_p),
        ("channels", c_int64), ("blocks", c_int64), ("tiles", c_int64),
        ("out_stride", c_int64), ("blocks_outside", c_int64), ("dense", c_int64),
        ("rows", c_int64), ("pitch", c_int64), ("first_gap", c_int64),
        ("gap", c_int64), ("last_gap", c_int64),
        ("low", c_float), ("high", c_float),
    ]  # fmt: skip


class CopyStruct(ctypes.Structure):
    """`Copy` of planes.c."""

    _fields_ = [
        ("from_data", c_void_p), ("from_block", c_int64), ("from_lane", c_int64), ("from_channel", c_int64),
        ("from_row", c_int64), ("from_column", c_int64),
        ("to_data", c_void_p), ("to_block", c_int64), ("to_channel", c_int64), ("to_phase", c_int64),
        ("pitch", c_int64), ("lanes", c_int64), ("top", c_int64), ("left", c_int64),
        ("row_stride", c_int64), ("column_stride", c_int64),
        ("images", c_int64), ("channels", c_int64), ("height", c_int64), ("width", c_int64),
    ]  # fmt: skip


class PoolStruct(ctypes.Structure):
    """`Pool` of planes.c."""

    _fields_ = [
        ("planes", CopyStruct),
        ("kernel_height", c_int64), ("kernel_width", c_int64), ("stride_y", c_int64), ("stride_x", c_int64),
        ("padding_y", c_int64), ("padding_x", c_int64), ("out_height", c_int64), ("out_width", c_int64),
    ]  # fmt: skip


def library() -> ctypes.CDLL:
    """The core, or an error that says how to get it."""
    found = core()
    if found is None:
        raise PofError(
            "pof.compile needs the compiled core of pof: install a C compiler, then pip install --force-reinstall pof"
        )
    found.pof_sparse_taps.restype = c_int64
    return found


def taps_of(
    weight: NDArray[np.float32], offsets: NDArray[np.int32], places: NDArray[np.int64]
) -> tuple[NDArray[np.void], NDArray[np.int32]]:
    """The taps of a weight (channels, length), block by block, and where each channel's begin in each block.

    `offsets` are (groups, length): the distances in bytes; `places` where blocks begin in a row, and the end.
    """
    native, (channels, length), blocks = library(), weight.shape, len(places) - 1
    shape = (address(weight), int64(channels), int64(length), int64(channels // len(offsets)))
    where = (address(places), int64(blocks), address(offsets))
    count = int(native.pof_sparse_taps(*shape, *where, None, None))
    taps, starts = np.empty(count + 1, TAP), np.empty((blocks, channels + 1), np.int32)
    native.pof_sparse_taps(*shape, *where, address(starts), address(taps))
    return taps, starts


def bound_conv(
    conv: ConvStruct,
    source: Tensor,
    residual: Tensor | None,
    out: Tensor,
    images: tuple[int, int, int],
    bounds: NDArray[np.int64],
    threads: int,
    *,
    plain: bool = False,
) -> Callable[[], object]:
    """A convolution over buffers, to be called; `images`: how many, and floats between two of source and of out."""
    return partial(
        library().pof_sparse_conv,
        ctypes.byref(conv),
        c_void_p(source.data_ptr()),
        c_void_p(None if residual is None else residual.data_ptr()),
        c_void_p(out.data_ptr()),
        *map(c_int64, images),
        int64(len(bounds) - 1),
        address(bounds),
        threads,
        int(plain),
    )


def copy_planes(copy: CopyStruct, threads: int) -> None:
    """Copy images from one place to another."""
    library().pof_copy_planes(ctypes.byref(copy), threads)


def max_pool(pool: PoolStruct, threads: int) -> None:
    """The largest of each window."""
    library().pof_max_pool(ctypes.byref(pool), threads)
