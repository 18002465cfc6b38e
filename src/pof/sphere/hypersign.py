"""The maths of the penalty (Eq. 3): the cosine between each row and its own pruning mask.

    L_tr = (1/n) * (sum_j (cos_j - 1))^2,   cos_j = <w_j, m_j> / ||w_j||,   m_j = sign(w_j) * kept_j / sqrt(#m_j)

for the n rows w_j of one weight; #m_j counts the non-zero elements of the mask's row, so that ||m_j|| = 1. The mask is
a constant in the gradient. A row with nothing kept has no mask: it counts in neither the sum nor n.

With unit rows u_j = w_j / ||w_j|| the gradient is

    dL/dw_j = (2/n) * sum_i (cos_i - 1) * (m_j - cos_j * u_j) / ||w_j||
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pof.ranking.row_norms import row_norms


class Cosines(NamedTuple):
    """The cosine of each row to its mask, and one over the mask's norm: 0 if all of the row is pruned.

    Both have the dimensions of the rows, with size 1 along each row.
    """

    values: Tensor
    inverse_norms: Tensor
    shortfall: Tensor
    """The sum over rows of cos - 1, a scalar."""
    rows: Tensor
    """The number of rows that have a mask, at least 1."""


def cosines(along: Tensor, signs: Tensor, dims: Sequence[int]) -> Cosines:
    """The cosine of each unit row u to its mask.

    `signs` are the signs of the kept weights, zero elsewhere; `along` is u * signs, the magnitudes of the kept weights.
    """
    # The Euclidean norm of the signs is the square root of their number, and torch's fastest way to count them.
    mask_norms = row_norms(signs, dims)
    inverse = torch.where(mask_norms > 0, mask_norms, torch.inf).reciprocal_()
    values = along.sum(tuple(dims), keepdim=True) * inverse
    rows = torch.count_nonzero(mask_norms)
    return Cosines(values, inverse, values.sum() - rows, rows.clamp_(min=1))


def ltr(cos: Cosines) -> Tensor:
    """L_tr of one weight, a scalar."""
    return cos.shortfall.square() / cos.rows


def add_ltr_gradient(
    grad: Tensor, units: Tensor, lengths: Tensor, signs: Tensor, cos: Cosines, scale: Tensor | float
) -> None:
    """Add `scale` times the gradient of L_tr with respect to the weight to `grad`, in place.

    `units` are the unit rows, `lengths` the norms ||w_j||, `signs` the signs of the kept weights.
    """
    slope = cos.shortfall * (2.0 * scale) / cos.rows
    # A row of zeros has no length and no mask: dividing by infinity makes its gradient zero.
    by_row = slope / torch.where(cos.inverse_norms > 0, lengths, torch.inf)
    grad.addcmul_(signs, by_row * cos.inverse_norms)
    grad.addcmul_(units, by_row * cos.values, value=-1.0)
