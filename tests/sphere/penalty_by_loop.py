"""Eq. 3 by plain loops over rows, in float64, and the penalty of one layer to compare with it."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from pof.sphere.penalty import Penalty

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

LAYERS: dict[str, Any] = {
    "linear": lambda: nn.Linear(7, 5),
    "one filter": lambda: nn.Linear(9, 1),
    "one weight": lambda: nn.Linear(1, 1),
    "one weight a filter": lambda: nn.Linear(1, 9),
    "conv1d": lambda: nn.Conv1d(3, 4, 3),
    "conv2d": lambda: nn.Conv2d(4, 6, 3),
    "conv3d": lambda: nn.Conv3d(2, 3, 2),
    "grouped": lambda: nn.Conv2d(4, 6, 3, groups=2),
    "depthwise": lambda: nn.Conv2d(6, 6, 3, groups=6),
    "transposed": lambda: nn.ConvTranspose2d(6, 4, 3),
    "transposed, grouped": lambda: nn.ConvTranspose2d(6, 4, 3, groups=2),
    "transposed, depthwise": lambda: nn.ConvTranspose2d(4, 4, 3, groups=4),
    "transposed 1d, grouped": lambda: nn.ConvTranspose1d(6, 9, 2, groups=3),
}


def made(name: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(seed)
    layer: nn.Module = LAYERS[name]().to(dtype)
    return layer


def rows(layer: nn.Module, weight: Tensor) -> list[Tensor]:
    """The rows of a weight, one an output unit, by plain slicing."""
    if not isinstance(layer, TRANSPOSED):
        return list(weight)
    per_group = weight.shape[0] // layer.groups
    return [
        weight[group * per_group : (group + 1) * per_group, unit]
        for group in range(layer.groups)
        for unit in range(weight.shape[1])
    ]


def kept_by_loop(layer: nn.Module, tr: float) -> set[int]:
    """Flat indices of what Prune(W, tr) keeps: all unit rows of a layer ranked together, ties by index."""
    weight = layer.weight.detach().double()
    indices = torch.arange(weight.numel()).view_as(weight)
    magnitude: dict[int, float] = {}
    for row, index in zip(rows(layer, weight), rows(layer, indices), strict=True):
        norm = math.sqrt(sum(value * value for value in row.flatten().tolist()))
        for value, i in zip(row.flatten().tolist(), index.flatten().tolist(), strict=True):
            magnitude[i] = abs(value) / norm if norm else 0.0
    order = sorted(magnitude, key=lambda i: (magnitude[i], i))
    return set(order[round(tr * weight.numel()) :])


def cosines_by_loop(layer: nn.Module, weight: Tensor, kept: set[int]) -> list[Tensor]:
    """cos_j = <w_j, m_j> / ||w_j|| with m_j = sign(w_j) * kept_j / sqrt(#m_j), for the rows that have a mask."""
    indices = torch.arange(weight.numel()).view_as(weight)
    found = []
    for row, index in zip(rows(layer, weight), rows(layer, indices), strict=True):
        keep = torch.tensor([i in kept for i in index.flatten().tolist()]).view_as(index)
        mask = row.detach().sign() * keep
        if mask.any():
            mask = mask / math.sqrt(int(mask.count_nonzero()))
            found.append((row * mask).sum() / row.square().sum().sqrt())
    return found


def ltr_by_loop(layer: nn.Module, weight: Tensor, kept: set[int]) -> Tensor:
    """Eq. 3: (1/n) * (sum_j (cos_j - 1))^2."""
    found = cosines_by_loop(layer, weight, kept)
    return sum((cos - 1 for cos in found), weight.new_zeros(())) ** 2 / max(len(found), 1)


def loop(layer: nn.Module, tr: float, kept: set[int] | None = None) -> tuple[Tensor, Tensor]:
    """Eq. 3 and its gradient by autograd, in float64, with the mask as a constant."""
    weight = layer.weight.detach().double().requires_grad_()
    value = ltr_by_loop(layer, weight, kept_by_loop(layer, tr) if kept is None else kept)
    if not value.requires_grad:
        return value, torch.zeros_like(weight)
    return value.detach(), torch.autograd.grad(value, weight)[0]


def penalty_of(layer: nn.Module, tr: float = 0.7, weight: float = 1.0, **options: Any) -> Penalty:
    return Penalty(layer, tr=tr, weight=weight, include="weight", **options)


def gradient(penalty: Penalty, weight: Tensor, step: int = 0) -> Tensor:
    """The gradient of the loss form."""
    return torch.autograd.grad(penalty(step), weight)[0]


def added(penalty: Penalty, weight: Tensor, step: int = 0) -> Tensor:
    """What `add_gradient` adds."""
    weight.grad = None
    penalty.add_gradient(step)
    assert weight.grad is not None
    result, weight.grad = weight.grad, None
    return result


PLANNED = ["1.weight", "2.weight", "3.weight", "5.weight"]
"""What the plan of `grouped_convnet` names."""
