"""One chunk of weights: positions, signs and magnitudes of some of the weights of every pruned tensor. See SPEC.md."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pof.errors import PofFileError
from pof.file.groups import Cursor, MaskReader, MaskWriter, Patterns, members_of, patterns_of
from pof.file.numbers import KINDS, Integers, Stored
from pof.file.streams import Bytes, StreamReader, StreamWriter

FILL_SHARE = 1 / 16
"""At least this share of a weight's magnitudes must be filled ones for it to pay."""

SAMPLED_ROWS = 8


@dataclass
class Flat:
    """One tensor as flat integers, and what of it has a place already."""

    size: int
    """Positions in a group: 8 or 9."""
    rows: int
    stored: Stored
    integers: Integers
    taken: Patterns

    @property
    def count(self) -> int:
        """How many weights it has."""
        return len(self.integers)


@dataclass
class MagnitudeWriter:
    """Gathers the magnitudes of many weights (and their signs, if the chunk has both)."""

    with_signs: bool
    _flags: list[int] = field(default_factory=list)
    _masks: MaskWriter = field(default_factory=MaskWriter)
    _fills: list[Bytes] = field(default_factory=list)
    _fill_signs: list[Bytes] = field(default_factory=list)
    _bases: list[int] = field(default_factory=list)
    _symbols: list[Bytes] = field(default_factory=list)
    _planes: dict[Stored, list[list[Bytes]]] = field(default_factory=dict)
    _level_signs: list[Bytes] = field(default_factory=list)

    def add(self, flat: Flat, members: NDArray[np.bool_], own: Patterns) -> None:
        """The magnitudes of the `members` of one tensor, whose patterns are `own`."""
        stored = flat.stored
        chosen = flat.integers[members]
        sign_mask = _sign_mask(flat)
        filled, fills = _fills(flat, members, chosen & ~sign_mask)
        self._flags.append(int(filled is not None))
        if filled is not None:
            all_filled = np.zeros(flat.count, np.bool_)
            all_filled[members] = filled
            full = own.dtype.type((1 << flat.size) - 1)
            self._masks.add(own ^ full, patterns_of(all_filled, flat.size), flat.size)
            self._fills.append(fills.view(np.uint8))
            if self.with_signs:
                self._fill_signs.append(_packed((chosen[filled] & sign_mask) != 0))
            chosen = chosen[~filled]
        self._split(stored, chosen)

    def _split(self, stored: Stored, chosen: Integers) -> None:
        negative = (chosen >> stored.sign_bit).astype(np.uint8)
        symbols = (chosen >> stored.low_bits & ((1 << stored.sign_bit - stored.low_bits) - 1)).astype(np.uint8)
        base = int(symbols.max()) if len(symbols) else 0
        self._bases.append(base)
        self._symbols.append(np.uint8(base) - symbols)
        if not stored.low_bits:
            self._level_signs.append(_packed(negative != 0))
            return
        planes = self._planes.setdefault(stored, [[] for _ in range(stored.planes)])
        for number, plane in enumerate(planes):
            last = number == stored.planes - 1
            low = (chosen >> (8 * number) & (127 if last else 255)).astype(np.uint8)
            plane.append(low | negative << 7 if last and self.with_signs else low)

    def write(self, out: StreamWriter) -> None:
        """The streams."""
        out.add([np.array(self._flags, np.uint8)])
        self._masks.write(out)
        out.add(self._fills)
        if self.with_signs:
            out.add(self._fill_signs)
        out.add([np.array(self._bases, np.uint8)])
        out.add(self._symbols)
        for stored in KINDS:
            for number in range(stored.planes):
                out.add(self._planes[stored][number] if stored in self._planes else [])
        if self.with_signs:
            out.add(self._level_signs)


class MagnitudeReader:
    """Gives the magnitudes back, in the order in which they were added."""

    def __init__(self, streams: StreamReader, weights: int, *, with_signs: bool) -> None:
        self._with_signs = with_signs
        self._flags = iter(_exactly(streams.next(), weights))
        self._masks = MaskReader(streams)
        self._fills = Cursor(streams.next())
        self._fill_signs = Cursor(streams.next() if with_signs else np.empty(0, np.uint8))
        self._bases = iter(_exactly(streams.next(), weights))
        self._symbols = Cursor(streams.next())
        self._planes = {kind: [Cursor(streams.next()) for _ in range(kind.planes)] for kind in KINDS}
        self._level_signs = Cursor(streams.next() if with_signs else np.empty(0, np.uint8))

    def next(self, flat: Flat, members: NDArray[np.bool_], own: Patterns) -> Integers:
        """The magnitudes (with signs, if the chunk has both) of the `members` of the next tensor."""
        count = int(np.count_nonzero(members))
        flag, base = int(next(self._flags)), int(next(self._bases))
        if flag == 0:
            return self._join(flat.stored, count, base)
        if flag != 1 or flat.count % flat.rows:
            raise PofFileError("a flag is neither 0 nor 1")
        full = own.dtype.type((1 << flat.size) - 1)
        filled_patterns = self._masks.next(own ^ full, flat.size)
        all_filled = members_of(filled_patterns, flat.size, flat.count)
        filled = all_filled[members]
        width = np.dtype(flat.stored.integer).itemsize
        fills = self._fills.take(flat.rows * width).view(flat.stored.integer)
        out = np.empty(count, flat.stored.integer)
        out[filled] = fills[np.flatnonzero(all_filled) // (flat.count // flat.rows)]
        if self._with_signs:
            number = int(np.count_nonzero(filled))
            negative = _unpacked(self._fill_signs.take(-(-number // 8)), number)
            out[filled] |= negative.astype(out.dtype) << flat.stored.sign_bit
        out[~filled] = self._join(flat.stored, count - int(np.count_nonzero(filled)), base)
        return out

    def _join(self, stored: Stored, count: int, base: int) -> Integers:
        symbols = np.uint8(base) - self._symbols.take(count)
        if not stored.low_bits:
            if self._with_signs:
                symbols |= _unpacked(self._level_signs.take(-(-count // 8)), count) << 7
            return symbols
        joined = symbols.astype(stored.integer) << stored.low_bits
        for number, plane in enumerate(self._planes[stored]):
            low = plane.take(count)
            if number < stored.planes - 1:
                joined |= low.astype(stored.integer) << (8 * number)
            else:
                joined |= (low & 127).astype(stored.integer) << (8 * number)
                if self._with_signs:
                    joined |= (low >> 7).astype(stored.integer) << stored.sign_bit
        return joined

    def end(self) -> None:
        """Raise if something is left."""
        planes = [plane for kind in self._planes.values() for plane in kind]
        for cursor in (self._masks, self._fills, self._fill_signs, self._symbols, *planes, self._level_signs):
            cursor.end()


def write_signs(out: StreamWriter, parts: Sequence[NDArray[np.bool_]]) -> None:
    """A stream of sign bits, each weight starting with a new byte."""
    out.add([_packed(part) for part in parts])


def read_signs(cursor: Cursor, count: int) -> Bytes:
    """The sign bits of one weight, 0 or 1."""
    return _unpacked(cursor.take(-(-count // 8)), count)


def _fills(
    flat: Flat, members: NDArray[np.bool_], magnitudes: Integers
) -> tuple[NDArray[np.bool_] | None, Integers]:
    """Which members have their row's most common magnitude, if that pays, and that magnitude for each row."""
    none = np.empty(0, magnitudes.dtype)
    length = flat.count // flat.rows
    if len(magnitudes) < 64 or not flat.stored.low_bits:
        return None, none
    # A few rows show whether it is worth looking at all of them.
    row_numbers = np.unique(np.linspace(0, flat.rows - 1, SAMPLED_ROWS).astype(np.int64))
    few = flat.integers.reshape(flat.rows, length)[row_numbers] & ~_sign_mask(flat)
    chosen = members.reshape(flat.rows, length)[row_numbers]
    if _filled_share(np.nonzero(chosen)[0], few[chosen], len(row_numbers)) < FILL_SHARE / 2:
        return None, none
    rows = np.flatnonzero(members) // length
    fills = _common(rows, magnitudes, flat.rows)
    filled = fills[rows] == magnitudes
    # Each row has a most common magnitude; only if they are common in the whole tensor are they a band.
    return (filled, fills) if np.count_nonzero(filled) >= FILL_SHARE * len(magnitudes) + 2 * flat.rows else (None, none)


def _filled_share(rows: NDArray[np.int64], magnitudes: Integers, count: int) -> float:
    if len(rows) == 0:
        return 1.0
    return float(np.count_nonzero(_common(rows, magnitudes, count)[rows] == magnitudes)) / len(rows)


def _sign_mask(flat: Flat) -> np.unsignedinteger:
    return flat.stored.integer(1 << flat.stored.sign_bit)


def _common(rows: NDArray[np.int64], magnitudes: Integers, count: int) -> Integers:
    """The most common magnitude of each row; the smallest of them on a tie, 0 for a row without any."""
    keys = rows.astype(np.uint64) << np.uint64(32) | magnitudes
    keys.sort()
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    lengths = np.diff(np.append(starts, len(keys)))
    found = keys[starts]
    order = np.lexsort((-found.astype(np.int64), lengths, found >> np.uint64(32)))
    last = found[order]
    row_of = (last >> np.uint64(32)).astype(np.int64)
    fills = np.zeros(count, magnitudes.dtype)
    fills[row_of] = (last & np.uint64(0xFFFF_FFFF)).astype(magnitudes.dtype)
    return fills


def _packed(bits: NDArray[np.bool_]) -> Bytes:
    return np.packbits(bits, bitorder="little")


def _unpacked(packed: Bytes, count: int) -> Bytes:
    return np.unpackbits(packed, count=count, bitorder="little")


def _exactly(data: Bytes, count: int) -> Bytes:
    if len(data) != count:
        raise PofFileError("a stream has not one byte for each weight")
    return data
