"""A dataset that fits in memory: two pairs of tensors, augmented batch by batch."""

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from pof.checks import check_whole
from pof.data.augment import crop_and_flip, normalise
from pof.data.batch_order import EpochOrder, Members, check_natural, hold_out, in_order, stream
from pof.errors import PofError

Split = tuple[Tensor, Tensor]
"""The images (N, C, H, W) and their labels, int64 (N,)."""


class TensorDataset:
    """Images and labels held in memory; follows `pof.data.Dataset`.

    Args:
        train: the images, as uint8 to be normalised or as ready float32, and their labels.
        test: the same for testing; images have the same shape and type.
        classes: the number of classes.
        mean: the mean of each channel, for pixels from 0 to 1; needed for uint8 images, and only for those.
        std: the standard deviation of each channel, likewise.
        padding: in training, add this many zeros on each side, and crop to the old size at random; 0 for none.
        flip: in training, mirror half of the images.

    Raises:
        PofError: the tensors do not fit together.
    """

    def __init__(
        self,
        train: Split,
        test: Split,
        *,
        classes: int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        padding: int = 0,
        flip: bool = False,
    ) -> None:
        self.classes = check_whole(classes, "classes", "the number of classes")
        check_natural(padding, "padding")
        for name, split in (("train", train), ("test", test)):
            _check_split(name, split, classes)
        if train[0].shape[1:] != test[0].shape[1:] or train[0].dtype != test[0].dtype:
            kinds = (f"{tuple(images.shape[1:])} {images.dtype}" for images, _ in (train, test))
            raise PofError(f"train and test images must be alike, not {' and '.join(kinds)}")
        channels, height, width = train[0].shape[1:]
        self.shape = (int(channels), int(height), int(width))
        self.train_images, self.test_images = len(train[0]), len(test[0])
        self._train, self._test = train, test
        self._scale = _scale(train[0], mean, std)
        self._padding, self._flip = padding, flip

    def holding_out(self, images: int) -> "TensorDataset":
        """The same dataset, tested on part of its train split; see `Dataset`."""
        rest, held = hold_out(self.train_images, images)
        other = copy(self)
        other._train, other._test = _pick(self._train, rest), _pick(self._train, held)
        other.train_images, other.test_images = len(rest), len(held)
        return other

    def train_batches(
        self, batch: int, *, seed: int, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled, augmented batches of one epoch; see `Dataset`."""
        batches = EpochOrder(self.train_images, batch, seed, epoch, start, rank, ranks)
        return (self._train_batch(batches, index, members) for index, members in batches)

    def test_batches(self, batch: int, *, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test image once, in order; see `Dataset`."""
        picks = in_order(self.test_images, batch, rank, ranks)
        return ((self._ready(images), labels) for images, labels in (_pick(self._test, pick) for pick in picks))

    def _train_batch(self, batches: EpochOrder, index: int, members: Members) -> tuple[Tensor, Tensor]:
        images, labels = _pick(self._train, members)
        if self._padding or self._flip:
            # Draw for the whole batch, so that a rank's images get the same as in a single process.
            draws = stream("crop and flip", batches.seed, batches.epoch, index)
            corners = draws.randint(0, 2 * self._padding + 1, (2, batches.batch), dtype=np.int64)
            flips = draws.randint(0, 1 + self._flip, batches.batch, dtype=np.int64)
            top, left, flip = (torch.from_numpy(row[batches.rows]) for row in (*corners, flips))
            images = crop_and_flip(images, self._padding, top, left, flip.bool())
        return self._ready(images), labels

    def _ready(self, images: Tensor) -> Tensor:
        return images if self._scale is None else normalise(images, *self._scale)


def _pick(split: Split, members: Members) -> Split:
    positions = torch.from_numpy(members)
    return split[0][positions], split[1][positions]


def _check_split(name: str, split: Split, classes: int) -> None:
    images, labels = split
    if images.dim() != 4 or images.dtype not in (torch.uint8, torch.float32) or not images.numel():
        found = f"{tuple(images.shape)} {images.dtype}"
        raise PofError(f"the {name} images must be (N, C, H, W), uint8 or float32, at least one: these are {found}")
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64:
        found = f"{tuple(labels.shape)} {labels.dtype}"
        raise PofError(f"the {name} labels must be ({len(images)},) int64, one per image: these are {found}")
    if labels.min() < 0 or labels.max() >= classes:
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise PofError(f"the {name} labels must be 0 to {classes - 1} (classes={classes}): these are {found}")


def _scale(images: Tensor, mean: Sequence[float] | None, std: Sequence[float] | None) -> tuple[Tensor, Tensor] | None:
    channels = images.shape[1]
    if images.dtype == torch.float32 and mean is None and std is None:
        return None
    if images.dtype == torch.float32 or mean is None or std is None:
        raise PofError(f"mean={mean} and std={std} must be given for uint8 images and only for those: {images.dtype}")
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise PofError(f"mean={mean} and std={std} must have {channels} numbers each, one per channel, std above 0")
    return torch.tensor(mean), torch.tensor(std)
