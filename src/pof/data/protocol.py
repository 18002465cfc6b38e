"""What a dataset is: the training loop calls these few functions and knows nothing else of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


class Dataset(Protocol):
    """Images with labels, in a train and a test split, given out in batches.

    Images are float32 (B, C, H, W), normalised; labels are int64 (B,). Every tensor is the caller's own to change.
    `batch` is always the global batch, over all ranks. No call reads or moves a global random state.
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
        """The same, with `images` of its train split, always the same, as its test split: to choose settings by."""

    def train_batches(
        self, batch: int, *, seed: int, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled, augmented batches of one epoch; images that fill no whole batch are left out.

        What batch number i holds depends on (seed, epoch, i) only, to the bit: a run that resumes at `start` sees what
        the uninterrupted one saw, and the ranks' parts, joined in the order of the ranks, are the batch of one process.

        Args:
            batch: images in a global batch; a multiple of `ranks`, and no more than there are.
            seed: of the order and the augmentation.
            epoch: 0 is the first; each has an order of its own.
            start: the first batch to give, 0 to `train_images // batch`.
            rank: of this process, below `ranks`.
            ranks: how many processes share each batch.
        """

    def test_batches(self, batch: int, *, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test image once, in order, without augmentation; the last batch may be smaller.

        Each rank gets a run of neighbours: the ranks' images, joined in the order of the ranks, are the split.
        """


@dataclass(frozen=True)
class KnownDataset:
    """A dataset that recipes can ask for by name: how to make it, and what is known of it before it is there."""

    make: Callable[..., Dataset]
    shape: tuple[int, int, int] | None
    """Channels, height and width of its images; None if the user's own images decide."""
    settings: tuple[str, ...] = ()
    """The keys of a recipe's `[data]` that `make` takes."""

    def __call__(self, **settings: Any) -> Dataset:
        """Make it."""
        return self.make(**settings)
