"""The chunks of a file, and which of them a state needs."""

from collections.abc import Sequence
from typing import NamedTuple

from pof.ranking.sparsity_state import DENSE, State


class Chunk(NamedTuple):
    """A part of the file, by its kind and its boundary."""

    kind: str
    boundary: int


BASE = Chunk("base", 0)


class Needed(NamedTuple):
    """What a state needs from a file."""

    values: int
    """How many boundaries, from the sparsest on, are needed as values; one more than there are means everything."""
    signs: int
    """How many boundaries, from the sparsest on, are needed at least as signs."""
    by_rank: bool
    """Whether the values must still be pruned or recovered by rank; if not, they are exactly what is needed."""


def chunks_of(stages: Sequence[float]) -> list[Chunk]:
    """All chunks, in the order of the file."""
    if not stages:
        return [BASE, Chunk("rest", 0)]
    middle = range(1, len(stages))
    return [
        BASE,
        Chunk("kept", 0),
        *(Chunk("signs", i) for i in middle),
        *(Chunk("magnitudes", i) for i in middle),
        Chunk("rest", len(stages)),
    ]


def needed_for(state: State, stages: Sequence[float], *, whole: bool = False) -> Needed:
    """What `state` needs; `whole` says that every state needs the whole file."""
    everything = len(stages) + 1
    if state == DENSE:
        return Needed(everything, everything, by_rank=False)
    if whole:
        return Needed(everything, everything, by_rank=True)
    ends = (*stages, 0.0)
    high, low = (_depth(end, ends) for end in (state.sparsity, state.recover_from))
    if state.sparsity in ends and state.recover_from in ends and state.recover_from > 0.0:
        return Needed(high, low, by_rank=False)
    return Needed(low, low, by_rank=True)


def chunks_for(needed: Needed, stages: Sequence[float]) -> list[Chunk]:
    """The chunks that hold what is needed, in the order of the file."""
    return [chunk for chunk in chunks_of(stages) if _holds(chunk, needed)]


def states_after(stages: Sequence[float], *, whole: bool = False) -> list[State | None]:
    """The densest state after each chunk, None if there is none yet; `whole` is as in `needed_for`."""
    found: list[State | None] = []
    for kind, boundary in chunks_of(stages):
        if kind == "rest":
            found.append(DENSE)
        elif kind == "base" or whole:
            found.append(None)
        elif kind == "signs":
            found.append(State(stages[0], stages[boundary]))
        elif kind == "kept":
            found.append(State(stages[0], stages[0]))
        else:
            # All signs come before the first magnitudes.
            found.append(State(stages[boundary], stages[-1]))
    return found


def _depth(sparsity: float, ends: Sequence[float]) -> int:
    """How many boundaries hold all weights that are kept at `sparsity`."""
    return next(number for number, end in enumerate(ends, start=1) if end <= sparsity)


def _holds(chunk: Chunk, needed: Needed) -> bool:
    if chunk.kind == "base":
        return True
    return chunk.boundary < (needed.signs if chunk.kind == "signs" else needed.values)
