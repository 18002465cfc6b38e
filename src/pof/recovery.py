"""Instant recovery (Eq. 5 and 6): the band between two pruning ratios becomes alpha * sign(w).

alpha minimises ||W' - alpha * sign(W')||^2 and is the mean magnitude of the band. A weight of the band that is exactly
zero has no sign: it stays zero and does not count.
"""

import torch
from torch import Tensor

from pof.magnitude import Cut, zero_smallest


def split_band(values: Tensor, low: Cut, high: Cut) -> tuple[Tensor, Tensor]:
    """`values` in two parts that do not overlap: what `high` keeps, and what only `low` keeps (the band)."""
    kept = zero_smallest(values, high)
    band = zero_smallest(values, low).sub_(kept)
    return kept, band


def band_alpha(band: Tensor) -> float:
    """The mean magnitude of the non-zero weights of the band; 0 for an empty band."""
    filled = int(torch.count_nonzero(band))
    # Summed in float64, so that the result does not depend on the memory layout.
    return float(band.abs().sum(dtype=torch.float64)) / filled if filled else 0.0


def fill_band(kept: Tensor, band: Tensor, alpha: float | Tensor) -> Tensor:
    """The recovered weights: `kept` plus alpha * sign(band). `alpha` is one number, or one a row (broadcast)."""
    return kept + alpha * band.sign()
