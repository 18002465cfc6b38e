"""Fresh memory for large results, in huge pages: the first write to each small page costs more than decoding."""

import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

LEAST = 1 << 20
"""Below this size, huge pages are not worth their own mapping."""
ALIGNMENT = 64


def fresh(size: int) -> Bytes:
    """An array of `size` zero bytes."""
    if size < LEAST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    # The mapping is private, as shared memory gets small pages.
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel may lack huge pages; small ones work too
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def fresh_parts(sizes: Sequence[int]) -> list[Bytes]:
    """One aligned array of zeros for each of `sizes`, all in one block of memory."""
    starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
    whole = fresh(int(starts[-1]))
    return [whole[start : start + size] for start, size in zip(starts[:-1].tolist(), sizes, strict=True)]
