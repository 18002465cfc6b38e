"""Instant recovery (Eq. 5 and 6): the band between two pruning ratios becomes alpha * sign(w).

alpha minimises ||W' - alpha * sign(W')||^2, so it is the mean magnitude of the band. A weight in the band that is
exactly zero has no sign: it stays zero and does not count.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from pof.ranking.cuts import Cut, cut_from, zero_smallest
from pof.ranking.magnitude_bits import has_no_gaps, in_memory_order

BLOCK = 1 << 15
"""How many weights are filled at a time, so that intermediate results stay in the cache."""


def split_band(values: Tensor, low: Cut, high: Cut, kept: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Split `values` into two tensors that do not overlap: what `high` keeps, and the band, which only `low` keeps.

    The first is written to `kept`, if given.
    """
    kept = zero_smallest(values, high, out=kept)
    return kept, zero_smallest(values, low).sub_(kept)


def band_alpha(bands: Iterable[Tensor]) -> float:
    """The mean magnitude of the non-zero weights of a band that is given in parts; 0 for an empty band."""
    total, filled = 0.0, 0
    for band in bands:
        # Summed in float64, so that the result does not depend on the memory layout.
        total += float(band.abs().sum(dtype=torch.float64))
        filled += _count_nonzero(band)
    return total / max(1, filled)


def _count_nonzero(values: Tensor) -> int:
    # numpy counts several times faster.
    if values.device.type == "cpu":
        return int(np.count_nonzero((values != 0).numpy()))
    return int(torch.count_nonzero(values))


def fill_band(kept: Tensor, band: Tensor, alpha: float | Tensor) -> Tensor:
    """Compute the recovered weights, kept + alpha * sign(band), in place of `kept`; `band` is overwritten.

    `alpha` is one number, or one per row (broadcast).
    """
    return kept.add_(band.sign_().mul_(alpha))


def find_alpha(values: Tensor, low: Cut, high: Cut) -> float:
    """The alpha of the band between the two cuts."""
    return band_alpha(split_band(part, *cuts)[1] for part, _, cuts in _blocks(values, values, low, high))


def recover(values: Tensor, low: Cut, high: Cut, out: Tensor, alpha: float | None = None) -> float:
    """Write `values`, with the band between the two cuts filled, to `out` (of the same shape); return alpha.

    Pass `alpha` if it is already known.
    """
    if alpha is None:
        alpha = find_alpha(values, low, high)
    for part, target, cuts in _blocks(values, out, low, high):
        kept, band = split_band(part, *cuts, kept=target)
        fill_band(kept, band, alpha)
    return alpha


def _blocks(values: Tensor, out: Tensor, low: Cut, high: Cut) -> Iterator[tuple[Tensor, Tensor, tuple[Cut, Cut]]]:
    """The parts of `values` and `out`, each with its part of the cuts."""
    size = values.numel()
    by_index = low.limit < size or high.limit < size
    if values.stride() != out.stride() or not has_no_gaps(values) or (by_index and not values.is_contiguous()):
        yield values, out, (low, high)
        return
    flat, flat_out = in_memory_order(values), in_memory_order(out)
    for start in range(0, size, BLOCK):
        part = flat[start : start + BLOCK]
        cuts = (cut_from(low, start, part.numel()), cut_from(high, start, part.numel()))
        yield part, flat_out[start : start + BLOCK], cuts
