"""The states that a network can be in: dense, pruned, or pruned and recovered."""

from typing import Literal, NamedTuple

from pof.errors import PofError
from pof.ranking.sparsity import check_sparsity

Scope = Literal["layer", "global"]
Magnitudes = Literal["raw", "unit"]


class State(NamedTuple):
    """Pruned at `sparsity`, with the band from `recover_from` to `sparsity` filled; equal ends mean no band."""

    sparsity: float
    recover_from: float

    @property
    def band_start(self) -> float | None:
        """Where the band begins, as callers pass it (`recover_from`); None if there is no band."""
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
    """The state with the band from `sp1` to `sp2`; checked. `names` are the user's names for them, for errors."""
    low, high = check_sparsity(sp1, names[0]), check_sparsity(sp2, names[1])
    if low > high:
        raise PofError(f"{names[0]}={low:g} must not exceed {names[1]}={high:g}, where the band ends: swap them")
    return State(high, low)


def asked_state(sparsity: float | None, recover_from: float | None) -> State:
    """The state for the two arguments of a caller; raises if only `recover_from` is given."""
    if sparsity is None:
        raise PofError("recover_from needs a sparsity, where the band ends: pass both")
    return pruned_state(sparsity, recover_from)
