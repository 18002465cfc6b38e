"""Keeps freed memory in the process: a training step on a CPU asks for the same large blocks again and again.

glibc returns large blocks to the kernel at once, and the kernel clears them again for the next step. Without that, a
step of a ResNet-20 is 1.1 times as fast, and one of a MobileNetV2 1.4 times (bench/kept_heap.py and its record).
"""

import ctypes
import sys
from contextlib import suppress

# Numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_GROW_BY = 64 << 20


def keep_freed_memory() -> bool:
    """Make the C library of this process keep freed memory; return whether it does. For programs, not libraries."""
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, AttributeError):  # a C library other than glibc
        mallopt = ctypes.CDLL(None).mallopt
        settings = ((_TRIM_THRESHOLD, -1), (_TOP_PAD, _GROW_BY), (_MMAP_MAX, 0))
        return all(mallopt(ctypes.c_int(name), ctypes.c_int(value)) == 1 for name, value in settings)
    return False
