"""Batches of inputs: how many inputs one has, the first few of all, and those that come after them."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from pof.errors import PofError


def size_of(batch: Any) -> int:
    """How many inputs a batch has: the length of its first tensor."""
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (tuple, list)) else (batch,)
    return next((len(part) for part in parts if isinstance(part, Tensor) and part.dim()), 1)


def first_inputs(batches: Iterable[Any], most: int) -> tuple[list[Any], int]:
    """Batches with the first `most` inputs, and how many inputs there are in all."""
    found: list[Any] = []
    taken = total = 0
    for batch in batches:
        size = size_of(batch)
        wanted = min(size, most - taken)
        # A part of one input would have no variance; a batch that comes with one is the caller's.
        if wanted > 1 or (wanted == 1 and (size == 1 or not found)):
            found.append(batch if wanted == size else _shortened(batch, size, wanted))
            taken += wanted
        total += size
    if not found:
        raise PofError("batches is empty: pass inputs, such as [images] with 256 images or more")
    return found, total


def _shortened(batch: Any, size: int, wanted: int) -> Any:
    """The batch with its first `wanted` inputs, if all its tensors have `size` of them."""
    return pytree.tree_map(lambda v: v[:wanted] if isinstance(v, Tensor) and v.dim() and len(v) == size else v, batch)


class LaterBatches:
    """All but the first `skipped` of `batches`, which are read anew by each iteration."""

    def __init__(self, batches: Iterable[Any], skipped: int) -> None:
        self._batches, self._skipped = batches, skipped

    def __iter__(self) -> Iterator[Any]:
        return islice(self._batches, self._skipped, None)


def later_batches(batches: Iterable[Any], skipped: int) -> Iterable[Any]:
    """All but the first `skipped` of `batches`; a list or tuple stays one."""
    return batches[skipped:] if isinstance(batches, (list, tuple)) else LaterBatches(batches, skipped)
