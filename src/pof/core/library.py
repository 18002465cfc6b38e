"""The compiled core: plain C functions, called with ctypes. All but `pof.compile` works without it, only slower."""

import ctypes
import importlib.util
import os
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pof.core.structures import check_structures

SWITCH = "POF_NO_CORE"
"""If this environment variable is set, the core is not used."""
LIBRARY = "POF_CORE"
"""This environment variable names another build of the core, such as that of `make sanitize`."""


@cache
def core() -> ctypes.CDLL | None:
    """The core, or None if it was not built or is switched off.

    Raises:
        PofError: the core was built from another version of pof.
    """
    if os.environ.get(SWITCH):
        return None
    found = importlib.util.find_spec("pof.core._compiled")
    path = os.environ.get(LIBRARY) or (None if found is None else found.origin)
    if path is None:
        return None
    try:
        library = ctypes.CDLL(path)
    except OSError:
        return None
    check_structures(library, path)
    library.pof_count.restype = ctypes.c_int64
    return library


class Address(ctypes.c_void_p):
    """A pointer that keeps its array alive as long as it is an argument of a call."""

    array: Any = None


def address(array: NDArray[Any] | None) -> Address:
    """The address of a contiguous array; null for None. In a structure, it does not keep the array alive."""
    if array is None:
        return Address()
    assert array.flags.c_contiguous
    found = Address(array.ctypes.data)
    found.array = array
    return found


def addresses(arrays: list[NDArray[np.uint8]]) -> Any:
    """An array of pointers that also keeps the arrays alive."""
    found = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    found.arrays = arrays  # type: ignore[attr-defined]
    return found


def int64(value: int) -> ctypes.c_int64:
    """A 64-bit integer, which ctypes would otherwise pass as 32 bits."""
    return ctypes.c_int64(value)
