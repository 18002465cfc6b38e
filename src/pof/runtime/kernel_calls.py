"""Calls to the compiled kernels (core/sparse.c, core/planes.c)."""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import c_int64, c_void_p
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pof.core.library import address, core, int64
from pof.core.structures import StepStruct, TapStruct
from pof.errors import PofError

TAP = np.dtype(TapStruct)


def library() -> ctypes.CDLL:
    """The compiled core; if there is none, an error says how to get it."""
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
    """The taps of a weight (channels, length), block by block, and where each channel's taps start in each block.

    `offsets` (groups, length) are distances in bytes; `places` says where the blocks of a row begin, and where it ends.
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
    """A function of the core with its argument: call it, or run several at once with `together`."""

    function: str
    argument: ctypes.Structure
    keeps: tuple[object, ...] = ()
    """The objects that the argument points to, kept alive."""

    def __call__(self, _: object = None) -> None:
        """Run the function."""
        getattr(library(), self.function)(ctypes.byref(self.argument))


def together(calls: Sequence[NativeCall]) -> Callable[[object], object]:
    """One call that runs all of these in order."""
    native = library()
    steps = (StepStruct * len(calls))()
    for step, each in zip(steps, calls, strict=True):
        step.run = ctypes.cast(native[each.function], c_void_p)
        step.argument = ctypes.addressof(each.argument)

    def run(_: object = None, *, kept: object = tuple(calls)) -> None:
        native.pof_run_steps(steps, int64(len(steps)))

    return run
