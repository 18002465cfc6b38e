"""Moving non-zeros between positions and layers: the pure functions behind `pof.methods.dsr`."""

from collections.abc import Sequence

import torch
from torch import Tensor


def split(count: int, shares: Sequence[int], room: Sequence[int]) -> list[int]:
    """Split `count` into whole parts in proportion to `shares`, none above its `room`.

    The sum of `room` must be at least `count`.

    Example:
        >>> split(6, shares=(1, 2, 3), room=(9, 9, 9)), split(6, shares=(1, 1, 4), room=(9, 9, 2))
        ([1, 2, 3], [2, 2, 2])
    """
    given = [0] * len(shares)
    while left := count - sum(given):
        takers = [i for i, most in enumerate(room) if given[i] < most]
        total, reached, handed = sum(shares[i] for i in takers), 0, 0
        for i in takers:
            # The running total is rounded, not each part, so that the parts add up.
            reached += shares[i]
            part = (2 * left * reached + total) // (2 * total) - handed
            handed += part
            given[i] += min(part, room[i] - given[i])
    return given


def below(weight: Tensor, kept: Tensor, threshold: float) -> Tensor:
    """The mask of kept weights smaller than `threshold`, without the largest if that would be all of them."""
    small = kept & (weight.abs() < threshold)
    if torch.equal(small, kept):
        best = torch.where(kept, weight.abs(), -1.0).argmax()
        small[torch.unravel_index(best, small.shape)] = False
    return small


def random_keys(like: Tensor, generator: torch.Generator) -> Tensor:
    """Random numbers in [1, 2) with the shape and device of `like`, from a generator on the CPU.

    The mask of the `largest` of them is a random one.
    """
    return (torch.rand(like.shape, generator=generator, dtype=torch.float32) + 1.0).to(like.device)


def count_kept(mask: Tensor) -> int:
    """How many elements of `mask` are True."""
    return int(torch.count_nonzero(mask))
