"""The images in each batch: a pure function of the seed, the epoch and the batch's index, for any number of ranks."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pof.checks import check_whole
from pof.errors import PofError

Members = npt.NDArray[np.int64]
"""The positions of a batch's images in their split."""


def stream(*key: int | str) -> np.random.RandomState:
    """Random numbers that depend only on `key`; different keys give independent streams."""
    digest = hashlib.blake2b(" ".join(map(str, key)).encode(), digest_size=32).digest()
    # RandomState, not default_rng: only its stream is guaranteed to be the same in every version of numpy.
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4"))


def check_natural(value: object, name: str, below: int | None = None) -> None:
    """Refuse a `value` that is not a whole number of 0 or more (and less than `below`)."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0 or (below is not None and value >= below):
        bound = "0 or more" if below is None else f"0 to {below - 1}"
        raise PofError(f"{name}={value!r} must be a whole number, {bound}")


def images_a_rank(batch: int, rank: int, ranks: int) -> int:
    """How many images of each global batch one rank gets."""
    check_whole(batch, "batch", "the number of images in a batch of all ranks")
    check_whole(ranks, "ranks", "the number of processes")
    check_natural(rank, "rank", below=ranks)
    if batch % ranks:
        raise PofError(f"batch={batch} must be a multiple of ranks={ranks}, so that all ranks get the same number")
    return batch // ranks


def hold_out(images: int, held: int) -> tuple[Members, Members]:
    """Hold out `held` training images, always the same, regardless of class; return the positions of both parts."""
    if not 0 < check_whole(held, "hold_out", "the number of training images to test on") < images:
        raise PofError(f"hold_out={held} must be less than {images}, the number of training images")
    order = stream("held out").permutation(images).astype(np.int64)
    return np.sort(order[held:]), np.sort(order[:held])


@dataclass(frozen=True)
class EpochOrder:
    """The batches of one epoch from `start` on, as one rank sees them: pairs of index and members."""

    images: int
    batch: int
    seed: int
    epoch: int
    start: int = 0
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        images_a_rank(self.batch, self.rank, self.ranks)
        check_natural(self.seed, "seed")
        check_natural(self.epoch, "epoch")
        if self.batch > self.images:
            raise PofError(f"batch={self.batch} must be at most {self.images}, the number of training images")
        check_natural(self.start, "start", below=self.images // self.batch + 1)

    @property
    def rows(self) -> slice:
        """The rows of a global batch that belong to this rank."""
        share = images_a_rank(self.batch, self.rank, self.ranks)
        return slice(self.rank * share, (self.rank + 1) * share)

    def __iter__(self) -> Iterator[tuple[int, Members]]:
        order = stream("order", self.seed, self.epoch).permutation(self.images).astype(np.int64)
        for index in range(self.start, self.images // self.batch):
            yield index, order[index * self.batch :][self.rows]


def in_order(images: int, batch: int, rank: int, ranks: int) -> Iterator[Members]:
    """All images once, in order: each rank gets a run of neighbours, in batches of its part of `batch`."""
    share = images_a_rank(batch, rank, ranks)
    first, end = images * rank // ranks, images * (rank + 1) // ranks
    return (np.arange(low, min(low + share, end), dtype=np.int64) for low in range(first, end, share))
