"""How the zeros of a network are divided among its layers: the same share for each, or all layers ranked together."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pof.errors import PofError
from pof.ranking.magnitude_bits import in_memory_order, magnitude_bits
from pof.ranking.sparsity import prune_count
from pof.ranking.sparsity_state import DENSE, State

GLOBAL_FLOOR = 0.01
"""With global ranking every layer keeps at least this share of its weights (and at least one)."""


class LayerSize(NamedTuple):
    """What of a layer decides how many zeros it gets."""

    weights: int
    fixed: float | None = None
    """The sparsity that it always has, whatever is asked for; None follows the state."""

    @property
    def most(self) -> int:
        """How many weights it can lose: one stays.

        An empty layer would make the outputs of the whole network the same for every input.
        """
        return max(0, self.weights - 1)


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
                f"sparsity={sparsity:g} is more than {reach:g}, the most for scope='global' "
                f"with {GLOBAL_FLOOR:.0%} kept in each layer: ask for less, or use scope='layer'"
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
    """How many weights to prune in each layer so that all are ranked together."""
    return GlobalRanking(layers).counts(sparsity)


def band_counts(layers: Sequence[LayerSize], keys: Sequence[Tensor] | None, state: State) -> list[tuple[int, int]]:
    """For each layer how many weights are zero, and how many are zero or in the band, in `state`.

    No layer loses more than `LayerSize.most`. What a small layer cannot lose, the others lose in its place.

    Args:
        layers: what is known of them.
        keys: the values to rank together (scope "global"); None gives each layer the same share.
        state: the state of the network.
    """
    if state == DENSE:
        return [(0, 0)] * len(layers)
    high = _prune_counts(layers, keys, state.sparsity)
    if state.is_pruned:
        return [(count, count) for count in high]
    # A fixed sparsity is the upper end of its layer's band; the lower end is what was asked for.
    ends = [
        layer if layer.fixed is None else layer._replace(fixed=min(layer.fixed, state.recover_from)) for layer in layers
    ]
    low = _prune_counts(ends, keys, state.recover_from)
    return list(zip(low, high, strict=True))


def _prune_counts(layers: Sequence[LayerSize], keys: Sequence[Tensor] | None, sparsity: float) -> list[int]:
    own = [sparsity if layer.fixed is None else layer.fixed for layer in layers]
    counts = [min(prune_count(layer.weights, value), layer.most) for layer, value in zip(layers, own, strict=True)]
    free = [i for i, layer in enumerate(layers) if layer.fixed is None]
    if keys is not None and free:
        shared = share_globally([keys[i] for i in free], sparsity)
    else:
        shared = share_alike([layers[i] for i in free], sparsity)
    for i, count in zip(free, shared, strict=True):
        counts[i] = count
    return counts


def share_alike(layers: Sequence[LayerSize], sparsity: float) -> list[int]:
    """How many weights to prune in each layer so that all have the same share of zeros, as far as they can.

    That is `round(sparsity * n)` in each. Where small layers cannot lose that many, the others go to a higher common
    sparsity, so that the network has `round(sparsity * n)` zeros, or as many as its layers can lose. The counts never
    fall as the sparsity grows, so sparser states nest.
    """
    alike = [prune_count(layer.weights, sparsity) for layer in layers]
    if all(count <= layer.most for count, layer in zip(alike, layers, strict=True)):
        return alike
    # What the layers have lost where the smallest of them comes to its end: roundings may add up to more than those of
    # the network, and a sparser state has no fewer zeros.
    limit = 1 - Fraction(1, 2 * min(layer.weights for layer in layers))
    least = [min(round(limit * layer.weights), layer.most) for layer in layers]
    wanted = max(prune_count(sum(layer.weights for layer in layers), sparsity), sum(least))
    return list(_at_total(tuple(layers), tuple(least), min(wanted, sum(layer.most for layer in layers))))


@lru_cache(maxsize=64)
def _at_total(layers: tuple[LayerSize, ...], least: tuple[int, ...], total: int) -> tuple[int, ...]:
    """The counts at the highest common sparsity that does not go beyond `total`, and no fewer than `least`.

    Layers that round at the same sparsity take the last few in their order. A search of some milliseconds for hundreds
    of layers, so that states which come back are remembered.
    """
    # Whole numbers, so that equal layers stay equal; steps fine enough to lie between any two sparsities that differ.
    steps = 4 * max(layer.weights for layer in layers) ** 2
    low, high = 0, steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sum(_at_common(layers, least, middle, steps)) <= total else (low, middle)
    counts = _at_common(layers, least, low, steps)
    while sum(counts) < total:
        open_layers = [i for i, layer in enumerate(layers) if counts[i] < layer.most]
        nearest = min(open_layers, key=lambda i: (Fraction(2 * counts[i] + 1, 2 * layers[i].weights), i))
        counts[nearest] += 1
    return tuple(counts)


def _at_common(layers: Sequence[LayerSize], least: Sequence[int], step: int, steps: int) -> list[int]:
    """The counts at the common sparsity `step / steps`."""
    return [
        min(max((2 * step * layer.weights + steps) // (2 * steps), count), layer.most)
        for layer, count in zip(layers, least, strict=True)
    ]
