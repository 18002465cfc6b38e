"""The states that a model can be in: dense, pruned, or pruned and recovered."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from torch import Tensor

from pof.errors import PofError
from pof.magnitude import check_sparsity, prune_count, share_globally
from pof.planning import Entry

Scope = Literal["layer", "global"]
Magnitudes = Literal["raw", "unit"]


class State(NamedTuple):
    """Pruned at `sparsity`, with the band from `recover_from` to `sparsity` filled; equal ends mean no band."""

    sparsity: float
    recover_from: float

    @property
    def band_start(self) -> float | None:
        """Where its band begins, as callers are asked for it; None if it has none."""
        return None if self.is_pruned else self.recover_from

    @property
    def is_pruned(self) -> bool:
        """Whether no band is filled."""
        return self.sparsity == self.recover_from

    def __str__(self) -> str:
        if self == DENSE:
            return "dense"
        if self.is_pruned:
            return f"pruned at {self.sparsity:g}"
        return f"recovered {self.recover_from:g}-{self.sparsity:g}"


DENSE = State(0.0, 0.0)


def pruned_state(sparsity: object, recover_from: object = None) -> State:
    """The state at `sparsity`, with a band from `recover_from` if that is given; checked."""
    if recover_from is not None:
        return recovered_state(recover_from, sparsity, ("recover_from", "sparsity"))
    checked = check_sparsity(sparsity)
    return State(checked, checked)


def recovered_state(sp1: object, sp2: object, names: tuple[str, str] = ("sp1", "sp2")) -> State:
    """The state with the band from `sp1` to `sp2`; checked. `names` are what the user calls them."""
    low, high = check_sparsity(sp1, names[0]), check_sparsity(sp2, names[1])
    if low > high:
        raise PofError(f"{names[0]}={low:g} must not exceed {names[1]}={high:g}, where the band ends: swap them")
    return State(high, low)


def asked_state(sparsity: float | None, recover_from: float | None) -> State:
    """The state that a caller means by these two."""
    if sparsity is None:
        raise PofError("recover_from needs a sparsity, where the band ends: pass both")
    return pruned_state(sparsity, recover_from)


def band_counts(entries: Sequence[Entry], keys: Sequence[Tensor] | None, state: State) -> list[tuple[int, int]]:
    """For each entry how many weights are zero, and how many are zero or in the band, in `state`.

    `keys` are the magnitudes to rank all together (scope "global"); None ranks each entry by itself.
    """
    if state == DENSE:
        return [(0, 0)] * len(entries)
    high = _prune_counts(entries, keys, state.sparsity, [entry.sparsity for entry in entries])
    if state.is_pruned:
        return [(count, count) for count in high]
    # A fixed sparsity is the upper end of its entry's band; the lower end is what was asked for.
    ends = [None if entry.sparsity is None else min(entry.sparsity, state.recover_from) for entry in entries]
    low = _prune_counts(entries, keys, state.recover_from, ends)
    return list(zip(low, high, strict=True))


def _prune_counts(
    entries: Sequence[Entry], keys: Sequence[Tensor] | None, sparsity: float, fixed: Sequence[float | None]
) -> list[int]:
    own = [sparsity if value is None else value for value in fixed]
    counts = [prune_count(entry.weights, value) for entry, value in zip(entries, own, strict=True)]
    free = [i for i, value in enumerate(fixed) if value is None]
    if keys is not None and free:
        for i, count in zip(free, share_globally([keys[i] for i in free], sparsity), strict=True):
            counts[i] = count
    return counts
