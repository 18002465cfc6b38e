"""Positions as patterns of 8 or 9 bits, one per group, and the tables that turn them into symbols. See SPEC.md."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pof.core.library import address, core, int64
from pof.file.streams import Bytes

Patterns = NDArray[Any]
"""An array of uint16, with one pattern per group."""
Symbols = NDArray[Any]
"""An array of uint16."""

KERNEL = 9


def group_size(shape: tuple[int, ...]) -> int:
    """The number of positions in a group: 9 for 3 x 3 kernels, else 8."""
    return KERNEL if len(shape) >= 3 and tuple(shape[-2:]) == (3, 3) else 8


def patterns_of(members: NDArray[np.bool_], size: int) -> Patterns:
    """The pattern of each group of `size` flat positions; bits beyond the end are not set."""
    count = -(-len(members) // size)
    native = core()
    if native is not None:
        found, flat = np.empty(count, np.uint16), np.ascontiguousarray(members)
        native.pof_patterns(address(flat), int64(len(flat)), size, address(found))
        return found
    if len(members) != count * size:
        members = np.concatenate([members, np.zeros(count * size - len(members), np.bool_)])
    if size == 8:
        return np.packbits(members, bitorder="little").astype(np.uint16)
    grouped = members.reshape(count, size)
    low = np.packbits(np.ascontiguousarray(grouped[:, :8]), axis=1, bitorder="little")[:, 0]
    return low.astype(np.uint16) | (grouped[:, 8].astype(np.uint16) << 8)


def count_of(patterns: Patterns, size: int) -> int:
    """How many positions are set."""
    native = core()
    if native is not None:
        flat = np.ascontiguousarray(patterns)
        return int(native.pof_count(address(flat), int64(len(flat))))
    return int(ones(size)[patterns].sum(dtype=np.int64))


def members_of(patterns: Patterns, size: int, count: int) -> NDArray[np.bool_]:
    """The inverse of `patterns_of`: which of `count` positions are set."""
    if size == 8:
        return np.unpackbits(patterns.astype(np.uint8), count=count, bitorder="little").view(np.bool_)
    flat: NDArray[np.bool_] = _bits(size)[patterns].reshape(-1)
    return flat[:count]


def taken_beyond(count: int, size: int) -> Patterns:
    """Patterns in which only the positions beyond the first `count` are taken."""
    taken = np.zeros(-(-count // size), np.uint16)
    if count % size:
        taken[-1] = (1 << size) - (1 << count % size)
    return taken


@cache
def ones(size: int) -> Bytes:
    """A table of how many bits are set in each pattern."""
    found: Bytes = _bits(size).sum(1, dtype=np.uint8)
    return found


@cache
def _bits(size: int) -> NDArray[np.bool_]:
    return (np.arange(1 << size)[:, None] >> np.arange(size) & 1).astype(np.bool_)


@cache
def gather_table(size: int) -> Symbols:
    """A table by (free pattern, pattern) of the bits at the free positions, moved together."""
    free, pattern = (axis.astype(np.uint16) for axis in np.mgrid[: 1 << size, : 1 << size])
    table, place = np.zeros_like(free), np.zeros_like(free)
    for i in range(size):
        is_free = free >> i & 1
        table |= (pattern >> i & is_free) << place
        place += is_free
    return np.ascontiguousarray(table.reshape(-1))


@cache
def spread_table(size: int) -> Patterns:
    """A table by (free pattern, symbol) of the symbol's bits, moved to the free positions."""
    free, symbol = (axis.astype(np.uint16) for axis in np.mgrid[: 1 << size, : 1 << size])
    table, place = np.zeros_like(free), np.zeros_like(free)
    for i in range(size):
        is_free = free >> i & 1
        table |= (symbol >> place & is_free) << i
        place += is_free
    return np.ascontiguousarray(table.reshape(-1))
