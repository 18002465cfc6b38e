"""Fresh memory for large results: in huge pages, as the first write to each small one costs more than decoding."""

import mmap
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

LEAST = 1 << 20
"""Below this huge pages are not worth a mapping of their own."""
ALIGNMENT = 64


def fresh(size: int) -> Bytes:
    """`size` bytes of zeros."""
    if size < LEAST or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    # Private, as shared memory gets small pages.
    mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # from a kernel without them; small pages work too
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def fresh_parts(sizes: Sequence[int]) -> list[Bytes]:
    """Zeros of each of `sizes` bytes, aligned, in one piece of memory."""
    starts = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)])
    whole = fresh(int(starts[-1]))
    return [whole[start : start + size] for start, size in zip(starts[:-1].tolist(), sizes, strict=True)]
