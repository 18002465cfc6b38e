"""The compiled kernels: structures as the C core has them (core/sparse.c, core/planes.c), and calls."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_float, c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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


class ConvCallStruct(ctypes.Structure):
    """`Call` of sparse.c."""

    _fields_ = [
        ("conv", c_void_p), ("source", c_void_p), ("residual", c_void_p), ("out", c_void_p),
        ("images", c_int64), ("in_images", c_int64), ("out_images", c_int64), ("count", c_int64),
        ("parts", c_void_p), ("threads", c_int64), ("plain", c_int64),
    ]  # fmt: skip


class CopyStruct(ctypes.Structure):
    """`Copy` of planes.c."""

    _fields_ = [
        ("from_data", c_void_p), ("from_block", c_int64), ("from_lane", c_int64), ("from_channel", c_int64),
        ("from_row", c_int64), ("from_column", c_int64),
        ("to_data", c_void_p), ("to_block", c_int64), ("to_channel", c_int64), ("to_phase", c_int64),
        ("pitch", c_int64), ("lanes", c_int64), ("top", c_int64), ("left", c_int64),
        ("row_stride", c_int64), ("column_stride", c_int64),
        ("images", c_int64), ("channels", c_int64), ("height", c_int64), ("width", c_int64), ("threads", c_int64),
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


@dataclass(frozen=True)
class NativeCall:
    """A function of the core with its argument; call it, or run many at once with `together`."""

    function: str
    argument: ctypes.Structure
    keeps: tuple[object, ...] = ()
    """What the argument points to."""

    def __call__(self, _: object = None) -> None:
        """Run it."""
        getattr(library(), self.function)(ctypes.byref(self.argument))


class _StepStruct(ctypes.Structure):
    """`Step` of steps.c."""

    _fields_ = [("run", c_void_p), ("argument", c_void_p)]


def together(calls: Sequence[NativeCall]) -> Callable[[object], object]:
    """One call that runs them in order."""
    native = library()
    steps = (_StepStruct * len(calls))()
    for step, each in zip(steps, calls, strict=True):
        step.run = ctypes.cast(native[each.function], c_void_p)
        step.argument = ctypes.addressof(each.argument)

    def run(_: object = None, *, kept: object = tuple(calls)) -> None:
        native.pof_run_steps(steps, int64(len(steps)))

    return run
