"""The maths of the penalty (Eq. 3): the cosine between each row and its own pruning mask.

    L_tr = (1/n) * (sum_j (cos_j - 1))^2,   cos_j = <w_j, m_j> / ||w_j||,   m_j = sign(w_j) * kept_j / sqrt(#m_j)

for the n rows w_j of one weight; #m_j counts the non-zero elements of the mask's row, so that ||m_j|| = 1. The mask is
a constant in the gradient. A row with nothing kept has no mask: it leaves both the sum and n.

In unit rows u_j = w_j / ||w_j|| the gradient is

    dL/dw_j = (2/n) * sum_i (cos_i - 1) * (m_j - cos_j * u_j) / ||w_j||
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pof.rows import row_norms


class Cosines(NamedTuple):
    """For each row (as size-1 dimensions) its cosine to its mask, the mask's size, and whether there is a mask."""

    values: Tensor
    mask_norms: Tensor
    valid: Tensor


def cosines(along: Tensor, signs: Tensor, dims: Sequence[int]) -> Cosines:
    """The cosine of each unit row u to its mask.

    `signs` are those of the kept weights, zero elsewhere; `along` is u * signs, the magnitudes of the kept weights.
    """
    # The Euclidean norm of the signs is the root of their number, and torch's quickest way to count them.
    mask_norms = row_norms(signs, dims)
    valid = mask_norms > 0
    return Cosines(along.sum(tuple(dims), keepdim=True) / torch.where(valid, mask_norms, 1.0), mask_norms, valid)


def shortfall(cos: Cosines) -> Tensor:
    """The sum over rows of cos - 1."""
    return torch.where(cos.valid, cos.values - 1.0, 0.0).sum()


def ltr(cos: Cosines) -> Tensor:
    """L_tr of one weight, a scalar."""
    return shortfall(cos).square() / cos.valid.sum().clamp(min=1)


def add_ltr_gradient(
    grad: Tensor, units: Tensor, lengths: Tensor, signs: Tensor, cos: Cosines, scale: Tensor | float
) -> None:
    """Add `scale` times the gradient of L_tr by the weight to `grad`, in place.

    `units` are the unit rows, `lengths` the ||w_j||, `signs` those of the kept weights.
    """
    slope = scale * 2.0 * shortfall(cos) / cos.valid.sum().clamp(min=1)
    by_row = torch.where(cos.valid, slope / lengths, 0.0)
    grad.addcmul_(signs, by_row / torch.where(cos.valid, cos.mask_norms, 1.0))
    grad.addcmul_(units, -by_row * cos.values)
