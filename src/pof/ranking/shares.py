"""How the zeros of a network are divided among its layers: the same share for each, or all layers ranked together."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pof.errors import PofError
from pof.ranking.magnitude_bits import in_memory_order, magnitude_bits
from pof.ranking.sparsity import prune_count
from pof.ranking.sparsity_state import DENSE, State

GLOBAL_FLOOR = 0.01
"""With global ranking every layer keeps at least this share of its weights (and at least one)."""


class GlobalRanking:
    """Ranks the weights of all layers together; each layer keeps at least `GLOBAL_FLOOR` of its own.

    Ties between layers go by their order. The counts never fall as the sparsity grows, so sparser states nest in
    denser ones.

    Args:
        keys: the values to rank, one tensor per layer.
        many: sort once, so that each further sparsity is quick.
    """

    def __init__(self, keys: Sequence[Tensor], *, many: bool = False) -> None:
        sizes = [layer.numel() for layer in keys]
        self._weights, self._sorted = sum(sizes), many
        self._most = [size - max(1, math.ceil(GLOBAL_FLOOR * size)) for size in sizes]
        dtype = torch.float64 if any(layer.dtype is torch.float64 for layer in keys) else torch.float32
        self._bits = [in_memory_order(magnitude_bits(layer.to(dtype))).cpu().numpy() for layer in keys]
        if many:
            self._bits = [np.sort(bits) for bits in self._bits]
        # The largest weights of each layer, which it always keeps, take no part: the others are one plain ranking.
        smallest = [self._smallest(bits, most) for bits, most in zip(self._bits, self._most, strict=True)]
        self._candidates = np.concatenate(smallest) if smallest else np.zeros(0, np.int32)
        if many:
            self._candidates.sort()

    def reaches(self, sparsity: float) -> bool:
        """Whether the layers can lose that many weights."""
        return prune_count(self._weights, sparsity) <= sum(self._most)

    def counts(self, sparsity: float) -> list[int]:
        """How many weights to prune in each layer."""
        if not self.reaches(sparsity):
            reach = math.floor(sum(self._most) / self._weights * 1e4) / 1e4
            raise PofError(
                f"sparsity={sparsity:g} is more than {reach:g}, the most that scope='global' reaches "
                f"when each layer keeps {GLOBAL_FLOOR:.0%} of its weights: ask for less, or use scope='layer'"
            )
        total = prune_count(self._weights, sparsity)
        if total == 0:
            return [0] * len(self._bits)
        if not self._sorted:
            self._candidates.partition(total - 1)
        threshold = self._candidates[total - 1]
        below, upto = (self._up_to(threshold, side) for side in ("left", "right"))
        left = total - sum(below)
        counts = []
        for lower, upper in zip(below, upto, strict=True):
            tied = min(left, upper - lower)
            counts.append(lower + tied)
            left -= tied
        return counts

    def _smallest(
        self, bits: "np.ndarray[tuple[int], np.dtype[np.int32]]", count: int
    ) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
        return bits[:count] if self._sorted or count >= len(bits) else np.partition(bits, count)[:count]

    def _up_to(self, threshold: int, side: str) -> list[int]:
        """How many weights of each layer are smaller than `threshold` ("left"), or at most as large ("right")."""
        if self._sorted:
            found = [
                int(np.searchsorted(bits, threshold, "left" if side == "left" else "right")) for bits in self._bits
            ]
        else:
            found = [
                int(np.count_nonzero(bits < threshold if side == "left" else bits <= threshold)) for bits in self._bits
            ]
        return [min(count, most) for count, most in zip(found, self._most, strict=True)]


def share_globally(layers: Sequence[Tensor], sparsity: float) -> list[int]:
    """How many weights to prune in each layer when all layers are ranked together."""
    return GlobalRanking(layers).counts(sparsity)


def band_counts(
    sizes: Sequence[int], fixed: Sequence[float | None], keys: Sequence[Tensor] | None, state: State
) -> list[tuple[int, int]]:
    """How many weights of each layer are zero in `state`, and how many are zero or in the band.

    Args:
        sizes: how many weights each layer has.
        fixed: the sparsity of each layer that does not follow the state; None follows it.
        keys: the values to rank together (scope "global"); None ranks each layer by itself.
        state: the state of the network.
    """
    if state == DENSE:
        return [(0, 0)] * len(sizes)
    high = _prune_counts(sizes, fixed, keys, state.sparsity)
    if state.is_pruned:
        return [(count, count) for count in high]
    # A fixed sparsity is the upper end of its layer's band; the lower end is what was asked for.
    ends = [None if value is None else min(value, state.recover_from) for value in fixed]
    low = _prune_counts(sizes, ends, keys, state.recover_from)
    return list(zip(low, high, strict=True))


def _prune_counts(
    sizes: Sequence[int], fixed: Sequence[float | None], keys: Sequence[Tensor] | None, sparsity: float
) -> list[int]:
    own = [sparsity if value is None else value for value in fixed]
    counts = [prune_count(size, value) for size, value in zip(sizes, own, strict=True)]
    free = [i for i, value in enumerate(fixed) if value is None]
    if keys is not None and free:
        for i, count in zip(free, share_globally([keys[i] for i in free], sparsity), strict=True):
            counts[i] = count
    return counts
