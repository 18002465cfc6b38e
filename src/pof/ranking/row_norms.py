"""The rows of a weight on the hypersphere. A row is one output unit (a filter): its norm is kept, its direction counts.

`dims` are the dimensions that make up one row; norms keep them with size 1, so that they broadcast.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def row_norms(rows: Tensor, dims: Sequence[int], accumulate: torch.dtype = torch.float32) -> Tensor:
    """The Euclidean norm of each row, in float32 (float64 for float64 weights).

    `accumulate=torch.float64` makes the norms of narrower weights independent of the memory layout, for ranking.
    """
    result = torch.float64 if rows.dtype is torch.float64 else torch.float32
    accumulate = torch.promote_types(result, accumulate)
    norms: Tensor = torch.linalg.vector_norm(rows, dim=tuple(dims), keepdim=True, dtype=accumulate)
    return norms.to(result)


def unit_rows(rows: Tensor, norms: Tensor, out: Tensor | None = None) -> Tensor:
    """Each row divided by its norm, in the norms' precision; a row of zeros stays zero."""
    return torch.div(rows, torch.where(norms > 0, norms, torch.inf), out=out)


def rescale_rows(rows: Tensor, dims: Sequence[int], norms: Tensor, accumulate: torch.dtype = torch.float32) -> Tensor:
    """Scale `rows` in place, so that each has its norm in `norms`; a row of zeros stays zero.

    A row whose norm in `norms` is zero has no sphere, and is left as it is.
    """
    now = row_norms(rows, dims, accumulate)
    return rows.mul_(torch.where((now > 0) & (norms > 0), norms / now, 1.0))
