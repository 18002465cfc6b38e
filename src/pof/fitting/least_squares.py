"""Least squares for nested states: one set of weights whose pruned parts all compute what the dense layer computes.

A layer with weights W (one row per output) and inputs X has the outputs W X. In state s it keeps the weights where the
mask M_s is 1. The refitted weights V minimise the sum over the states, the dense one included:

    sum_s c_s * || (V * M_s - W) X ||^2  =  sum_s c_s * tr((V * M_s - W) H (V * M_s - W)^T),     H = X X^T

That is linear in V, and each row is a problem of its own. All rows are solved at once by conjugate gradients, with the
diagonal as preconditioner; one iteration costs one product (V * M_s) H per state.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

TINY = 1e-20


def damped(gram: Tensor, damping: float) -> Tensor:
    """`gram` (groups, d, d), scaled to a mean diagonal of one, plus `damping` on the diagonal."""
    scale = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=TINY)
    return gram / scale[:, None, None] + damping * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)


def nested_least_squares(
    weights: Tensor,
    gram: Tensor,
    kept: Sequence[Tensor],
    shares: Sequence[float],
    *,
    start: Tensor | None = None,
    iterations: int = 20,
) -> Tensor:
    """The weights whose masked versions are nearest to `weights` in their outputs.

    Args:
        weights: (groups, rows, d).
        gram: (groups, d, d): the products of the inputs with each other, `damped`.
        kept: a mask per state, in the shape of `weights`.
        shares: what the error of each state counts.
        start: where to begin; `weights` by default.
        iterations: how many steps of conjugate gradients.
    """
    masks = [mask.to(weights.dtype) for mask in kept]
    states = list(zip(shares, masks, strict=True))
    diagonal = gram.diagonal(dim1=1, dim2=2)[:, None, :]
    scale = sum((c * m for c, m in states), torch.zeros_like(weights)).mul_(diagonal).clamp_(min=TINY)
    wanted = weights @ gram
    found = weights.clone() if start is None else start.clone()
    left = torch.zeros_like(weights)
    for c, m in states:
        left.add_((wanted - (found * m) @ gram) * m, alpha=c)
    direction = left / scale
    size = (left * direction).sum(2, keepdim=True)
    for _ in range(iterations):
        image = torch.zeros_like(weights)
        for c, m in states:
            image.add_(((direction * m) @ gram) * m, alpha=c)
        curvature = (direction * image).sum(2, keepdim=True)
        # Rounding may leave a row that is solved, or whose inputs are constant, with nothing to go by.
        step = torch.where(curvature > TINY, size / curvature, torch.zeros_like(size))
        found.addcmul_(step.expand_as(direction), direction)
        left.addcmul_(step.expand_as(image), image, value=-1)
        scaled = left / scale
        last, size = size, (left * scaled).sum(2, keepdim=True)
        direction = scaled + size / last.clamp(min=TINY) * direction
    # A weight that no state keeps has no equation: it stays as it was.
    return torch.where(torch.stack(masks).amax(0) > 0, found, weights if start is None else start)


def relative_errors(states: Sequence[Tensor], weights: Tensor, gram: Tensor) -> tuple[float, ...]:
    """The squared errors of the outputs with `states` instead of `weights`, as shares of the outputs' squares."""
    total = float(((weights @ gram) * weights).sum())
    found = []
    for state in states:
        off = state - weights
        found.append(float(((off @ gram) * off).sum()) / total if total > 0 else 0.0)
    return tuple(found)
