"""The interface of a dataset: the training loop calls these few functions and knows nothing else about it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Dataset(Protocol):
    """Images with labels, in a train and a test split, given out in batches.

    Images are float32 (B, C, H, W), normalised; labels are int64 (B,). Callers may change every tensor they get.
    `batch` is always the size of the global batch, over all ranks. No call reads or changes a global random state.
    """

    @property
    def classes(self) -> int:
        """How many classes there are; labels are 0 to classes - 1."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image: channels, height, width."""

    @property
    def train_images(self) -> int:
        """How many images the train split has."""

    @property
    def test_images(self) -> int:
        """How many images the test split has."""

    def holding_out(self, images: int) -> "Dataset":
        """The same dataset, with `images` of its train split (always the same) as test split, for choosing settings."""

    def train_batches(
        self, batch: int, *, seed: int, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled, augmented batches of one epoch; images that do not fill a whole batch are left out.

        Every bit of batch i depends only on (seed, epoch, i): a run that resumes at `start` sees what an uninterrupted
        run sees, and the ranks' parts, joined in the order of the ranks, are the batch of a single process.

        Args:
            batch: the number of images in a global batch: a multiple of `ranks`, and at most `train_images`.
            seed: the seed of the order and the augmentation.
            epoch: the epoch, from 0 on; each has its own order.
            start: the first batch to return, 0 to `train_images // batch`.
            rank: the rank of this process, below `ranks`.
            ranks: how many processes share each batch.
        """

    def test_batches(self, batch: int, *, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test image once, in order, without augmentation; the last batch may be smaller.

        Each rank gets a run of neighbours: the ranks' images, joined in the order of the ranks, are the split.
        """


@dataclass(frozen=True)
class KnownDataset:
    """A dataset that recipes can name: how to make it, and what is known about it beforehand."""

    make: Callable[..., Dataset]
    shape: tuple[int, int, int] | None
    """The channels, height and width of its images; None if the user's own images decide."""
    settings: tuple[str, ...] = ()
    """The keys of a recipe's `[data]` that `make` takes."""

    def __call__(self, **settings: Any) -> Dataset:
        """Make the dataset."""
        return self.make(**settings)
