"""Freed memory stays with the process: a training step on a CPU asks for the same large blocks again and again.

glibc gives large blocks back to the kernel at once, and the kernel clears them anew for the next step: without that a
ResNet-20's step is 1.1 times as fast, and a MobileNetV2's 1.4 times (bench/kept_heap.py, results/kept_heap.json).
"""

import ctypes
import sys
from contextlib import suppress

# Numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_GROW_BY = 64 << 20


def keep_freed_memory() -> bool:
    """Let the C library of this process keep what is freed; return whether it could. Not for libraries."""
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        settings = ((_TRIM_THRESHOLD, -1), (_TOP_PAD, _GROW_BY), (_MMAP_MAX, 0))
        return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)
    return False
