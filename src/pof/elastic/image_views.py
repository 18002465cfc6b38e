"""Random parts of images to learn from: more to see in a few images, and smaller ones take less time.

The teacher sees the same part, so whatever it shows is a lesson. A network that only takes images of its own size gets
shifted ones.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

STEP = 32
"""Sides of a part are multiples of this, as the strides of most networks together are."""
LARGE = 128
"""Images of at least this size are cropped; smaller ones are shifted, by up to an eighth."""
SHARE = 0.7
"""The side of a part, as a share of the image's."""


class ImageViews:
    """Random views of batches that are images; other batches stay as they are.

    Args:
        works: returns whether the network takes a batch; it is asked once for each size of images.
    """

    def __init__(self, works: Callable[[Any], bool]) -> None:
        self._works = works
        self._taken: dict[tuple[int, ...], bool] = {}

    def of(self, batch: Any, generator: torch.Generator) -> Any:
        """A random view of `batch`: a part of it, possibly mirrored."""
        if not isinstance(batch, Tensor):
            if isinstance(batch, (tuple, list)) and batch and isinstance(batch[0], Tensor):
                return type(batch)([self.of(batch[0], generator), *batch[1:]])
            return batch
        if batch.dim() != 4 or batch.shape[1] not in (1, 3) or not batch.is_floating_point():
            return batch
        view = self._part(batch, generator)
        return view.flip(3) if _below(2, generator) else view

    def _part(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        height, width = batch.shape[2:]
        if min(height, width) >= LARGE:
            sides = [round(SHARE * side / STEP) * STEP for side in (height, width)]
            view = _cropped(batch, sides, generator)
            if batch.shape[1:] not in self._taken:
                self._taken[batch.shape[1:]] = self._works(view[:1])
            if self._taken[batch.shape[1:]]:
                return view
        down, right = height // 8, width // 8
        return _cropped(F.pad(batch, (right, right, down, down)), (height, width), generator)


def _cropped(batch: Tensor, sides: Any, generator: torch.Generator) -> Tensor:
    top, left = (_below(size - side + 1, generator) for size, side in zip(batch.shape[2:], sides, strict=True))
    return batch[:, :, top : top + sides[0], left : left + sides[1]]


def _below(limit: int, generator: torch.Generator) -> int:
    """A random whole number from 0 to below `limit`."""
    return int(torch.randint(limit, (), generator=generator))
