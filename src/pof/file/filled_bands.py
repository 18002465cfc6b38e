"""Find the weights that share the most common magnitude of their row: a band that was filled with alpha."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pof.file.flat_weights import Flat
from pof.file.weight_integers import Integers

FILL_SHARE = 1 / 16
"""At least this share of a tensor's magnitudes must be filled for it to pay off."""

SAMPLED_ROWS = 8


def find_fills(
    flat: Flat, members: NDArray[np.bool_], magnitudes: Integers
) -> tuple[NDArray[np.bool_] | None, Integers]:
    """Which members have their row's most common magnitude, if that pays off, and that magnitude for each row."""
    none = np.empty(0, magnitudes.dtype)
    length = flat.count // flat.rows
    if len(magnitudes) < 64 or not flat.stored.low_bits:
        return None, none
    # A few rows show whether it is worth checking all of them.
    row_numbers = np.unique(np.linspace(0, flat.rows - 1, SAMPLED_ROWS).astype(np.int64))
    few = flat.integers.reshape(flat.rows, length)[row_numbers] & ~sign_mask_of(flat)
    chosen = members.reshape(flat.rows, length)[row_numbers]
    if _filled_share(np.nonzero(chosen)[0], few[chosen], len(row_numbers)) < FILL_SHARE / 2:
        return None, none
    rows = np.flatnonzero(members) // length
    fills = _common(rows, magnitudes, flat.rows)
    filled = fills[rows] == magnitudes
    # Every row has a most common magnitude. They form a band only if they are common in the whole tensor.
    return (filled, fills) if np.count_nonzero(filled) >= FILL_SHARE * len(magnitudes) + 2 * flat.rows else (None, none)


def _filled_share(rows: NDArray[np.int64], magnitudes: Integers, count: int) -> float:
    if len(rows) == 0:
        return 1.0
    return float(np.count_nonzero(_common(rows, magnitudes, count)[rows] == magnitudes)) / len(rows)


def sign_mask_of(flat: Flat) -> "np.unsignedinteger[Any]":
    """An integer with only the sign bit set."""
    mask: np.unsignedinteger[Any] = flat.stored.integer(1 << flat.stored.sign_bit)
    return mask


def _common(rows: NDArray[np.int64], magnitudes: Integers, count: int) -> Integers:
    """The most common magnitude of each row: the smallest one on a tie, 0 for a row without any."""
    keys = rows.astype(np.uint64) << np.uint64(32) | magnitudes
    found, lengths = np.unique(keys, return_counts=True)
    order = np.lexsort((-found.astype(np.int64), lengths, found >> np.uint64(32)))
    last = found[order]
    row_of = (last >> np.uint64(32)).astype(np.int64)
    fills = np.zeros(count, magnitudes.dtype)
    fills[row_of] = (last & np.uint64(0xFFFF_FFFF)).astype(magnitudes.dtype)
    return fills
