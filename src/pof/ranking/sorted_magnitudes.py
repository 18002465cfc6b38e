"""All magnitudes of one weight in order, in two bytes each, so that the cut at any sparsity is found without a search.

In a sorted list of 32-bit integers the upper half changes rarely. The lower halves are stored as they are (two bytes
per weight), and the upper ones once for each run of equal values.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pof.ranking.cuts import Cut, cut_through, find_cut
from pof.ranking.magnitude_bits import bits_to_magnitude, in_memory_order, magnitude_bits

SMALLEST = 1 << 16
"""Below this many weights a search is quick, and the table of runs would cost more than it saves."""


class SortedMagnitudes:
    """Cuts of one weight at any count.

    Args:
        zeros_alike: if True, it does not matter which of several zeros is pruned. In a weight that is already sparse,
            telling them apart costs more than everything else.
    """

    def __init__(self, *, zeros_alike: bool = False) -> None:
        self._zeros_alike = zeros_alike
        self._sorted, self._size, self._dtype = False, 0, torch.float32
        self._low = np.empty(0, np.uint16)
        self._high = np.empty(0, np.uint16)
        self._starts = np.empty(0, np.int32)

    @property
    def nbytes(self) -> int:
        """How many bytes of memory are held besides the keys."""
        return self._low.nbytes + self._high.nbytes + self._starts.nbytes

    def cut(self, count: int, ranked: Callable[[], Tensor]) -> Cut:
        """The cut that prunes exactly `count` weights; `ranked` returns their keys, the same numbers at each call."""
        if not self._sorted:
            keys = ranked()
            if not _pays(keys):
                return find_cut(keys, count)
            self._sort(keys)
        if not 0 < count < len(self._low):
            return find_cut(ranked(), count)
        last_pruned = self._bits(count - 1)
        if last_pruned < self._bits(count) or (last_pruned == 0 and self._zeros_alike):
            return Cut(bits_to_magnitude(last_pruned, self._dtype), self._size)
        return cut_through(ranked(), last_pruned, count - self._rank(last_pruned))

    def _sort(self, keys: Tensor) -> None:
        ordered = np.sort(in_memory_order(magnitude_bits(keys)).numpy())
        high = ordered >> 16
        self._starts = np.flatnonzero(np.diff(high, prepend=-1)).astype(np.int32)
        self._high = high[self._starts].astype(np.uint16)
        # The few largest magnitudes make room for the table of runs, so that the total is two bytes per weight. Counts
        # that reach them (sparsities of 99 % and more) need a search.
        room = len(ordered) - (self._starts.nbytes + self._high.nbytes) // 2
        if room <= 0:
            self._starts, self._high = self._starts[:0].copy(), self._high[:0].copy()
        self._low = ordered[: max(0, room)].astype(np.uint16)
        self._sorted, self._size, self._dtype = True, keys.numel(), keys.dtype

    def _bits(self, rank: int) -> int:
        run = int(np.searchsorted(self._starts, np.int32(rank), side="right")) - 1
        return (int(self._high[run]) << 16) | int(self._low[rank])

    def _rank(self, bits: int) -> int:
        """How many magnitudes are smaller than the one with these bits, which must be in the table."""
        run = int(np.searchsorted(self._high, np.uint16(bits >> 16)))
        start = int(self._starts[run])
        end = int(self._starts[run + 1]) if run + 1 < len(self._starts) else len(self._low)
        return start + int(np.searchsorted(self._low[start:end], np.uint16(bits & 0xFFFF)))


def _pays(keys: Tensor) -> bool:
    return keys.numel() >= SMALLEST and keys.dtype is not torch.float64 and keys.device.type == "cpu"
