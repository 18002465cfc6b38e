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


class Cosines(NamedTuple):
    """The cosine of each row to its mask (rows as size-1 dimensions), and where there is one."""

    values: Tensor
    valid: Tensor


def mask_rows(kept: Tensor, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
    """HyperSign in two parts: the signs of what is kept (zeros elsewhere), and the norm that they are divided by."""
    signs = kept.sign()
    return signs, signs.abs().sum(tuple(dims), keepdim=True).sqrt_()


def cosines(units: Tensor, signs: Tensor, norms: Tensor, dims: Sequence[int]) -> Cosines:
    """The cosine of each unit row to its mask `signs / norms`."""
    valid = norms > 0
    along = (units * signs).sum(tuple(dims), keepdim=True)
    return Cosines(along / torch.where(valid, norms, 1.0), valid)


def ltr(cos: Cosines) -> Tensor:
    """L_tr of one weight, a scalar."""
    shortfall = torch.where(cos.valid, cos.values - 1.0, 0.0).sum()
    return shortfall.square() / cos.valid.sum().clamp(min=1)


def add_ltr_gradient(
    grad: Tensor,
    units: Tensor,
    lengths: Tensor,
    signs: Tensor,
    norms: Tensor,
    cos: Cosines,
    scale: Tensor | float,
) -> None:
    """Add `scale` times the gradient of L_tr by the weight to `grad`, in place. `lengths` are the rows' ||w_j||."""
    shortfall = torch.where(cos.valid, cos.values - 1.0, 0.0).sum()
    slope = scale * 2.0 * shortfall / cos.valid.sum().clamp(min=1)
    by_row = torch.where(cos.valid, slope / lengths, 0.0)
    grad.addcmul_(signs, (by_row / torch.where(cos.valid, norms, 1.0)).to(grad.dtype))
    grad.addcmul_(units, (-by_row * cos.values).to(grad.dtype))
