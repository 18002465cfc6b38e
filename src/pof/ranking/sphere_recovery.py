"""Pruning and recovery on the sphere: unit rows are ranked, and every row that loses weights gets its norm back.

This is done a few rows at a time, so that intermediate results stay in the cache.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pof.ranking.cuts import Cut, cut_from, keep_mask, zero_smallest
from pof.ranking.recovery import band_alpha, fill_band
from pof.ranking.row_layout import RowLayout
from pof.ranking.row_norms import rescale_rows, unit_rows

BLOCK = 1 << 17
"""About how many weights are processed at a time."""


def recover_on_sphere(
    dense: Tensor, norms: Tensor, layout: RowLayout, low: Cut, high: Cut, out: Tensor, alpha: float | None = None
) -> float:
    """Write `dense`, pruned at `low` and with the band up to `high` filled, to `out`; return alpha (0 without a band).

    `norms` are the norms of the rows, with the dimensions of a row kept as size 1. The band of row j is filled with
    alpha * norms_j. Pass `alpha` if it is already known.
    """
    if alpha is None:
        alpha = find_alpha_on_sphere(dense, norms, layout, low, high)
    first = 0
    for part, own, start in _blocks(dense, norms, layout):
        keys = _keys(part, own, layout)
        values = _kept(part, keys, cut_from(high, start, part.numel()))
        if low != high:
            fill_rows(values, _band(keys, low, high, start), alpha, own, layout)
        rows, dims = layout.rows(values)
        rescale_rows(rows, dims, _norms_of_changed(rows, part, own, layout), torch.float64)
        out[first : first + len(part)].copy_(values)
        first += len(part)
    return alpha


def find_alpha_on_sphere(dense: Tensor, norms: Tensor, layout: RowLayout, low: Cut, high: Cut) -> float:
    """The alpha of the band of unit rows between the two cuts; 0 without a band."""
    if low == high:
        return 0.0
    parts = _blocks(dense, norms, layout)
    return band_alpha(_band(_keys(part, own, layout), low, high, start) for part, own, start in parts)


def fill_rows(kept: Tensor, band: Tensor, alpha: float, norms: Tensor, layout: RowLayout) -> None:
    """Fill the band of row j with alpha * norms_j, in place of `kept`; `band` is overwritten."""
    fill_band(layout.rows(kept)[0], layout.rows(band)[0], alpha * norms)


def _blocks(dense: Tensor, norms: Tensor, layout: RowLayout) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Blocks of rows, with their norms and the flat index of the first weight. Rows in dimension 1 are one block."""
    if not layout.is_plain:
        yield dense, norms, 0
        return
    length = dense[0].numel()
    step = max(1, BLOCK // length)
    for first in range(0, len(dense), step):
        yield dense[first : first + step], norms[first : first + step], first * length


def _keys(part: Tensor, norms: Tensor, layout: RowLayout) -> Tensor:
    return unit_rows(layout.rows(part)[0], norms).reshape(part.shape)


def _kept(part: Tensor, keys: Tensor, cut: Cut) -> Tensor:
    if cut.value <= 0:
        # A key may be zero where the weight is not.
        return torch.where(keep_mask(keys, cut), part, 0.0)
    # Several times faster than `where`; adding zero turns what became -0.0 into 0.0.
    return zero_smallest(keys, cut).sign_().abs_().to(part.dtype).mul_(part).add_(0.0)


def _band(keys: Tensor, low: Cut, high: Cut, start: int) -> Tensor:
    size = keys.numel()
    return zero_smallest(keys, cut_from(low, start, size)).sub_(zero_smallest(keys, cut_from(high, start, size)))


def _norms_of_changed(rows: Tensor, part: Tensor, norms: Tensor, layout: RowLayout) -> Tensor:
    """The norms, but zero (leave the row as it is) for rows that lost nothing, so that these stay the same bit for bit.

    Norms summed in float64 and rounded to float32 are equal if nothing changed, so only float64 weights need this.
    """
    if norms.dtype is not torch.float64:
        return norms
    dims = layout.rows(part)[1]
    return torch.where(torch.any(rows != layout.rows(part)[0], dim=dims, keepdim=True), norms, 0.0)
