"""One chunk of weights: positions, signs and magnitudes of some of the weights of every pruned tensor. See SPEC.md."""

from collections.abc import Sequence
from ctypes import CDLL
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pof.errors import PofFileError
from pof.file.groups import Cursor, MaskReader, MaskWriter, Patterns, count_of, members_of, patterns_of
from pof.file.numbers import KINDS, Integers, Stored
from pof.file.streams import Bytes, StreamReader, StreamWriter
from pof.native import address, core, int64

FILL_SHARE = 1 / 16
"""At least this share of a weight's magnitudes must be filled ones for it to pay."""

SAMPLED_ROWS = 8
ROOM = 8
"""Values that the compiled core may look at, but not use, beyond the end."""


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
        chosen = collect(flat, members, own)
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

    def place(self, flat: Flat, own: Patterns, negative: Bytes | None = None) -> None:
        """Put the magnitudes of the next tensor to the positions `own` of it.

        Their signs are in the chunk, or given in `negative`, 0 or 1 each.
        """
        flag, base = int(next(self._flags)), int(next(self._bases))
        if flag > 1:
            raise PofFileError("a flag is neither 0 nor 1")
        native = core()
        if native is not None:
            plain = self._fill_fast(native, flat, own) if flag else own
            self._place_fast(native, flat, plain, base, None if flag else negative)
            if flag and negative is not None:
                _set_signs(native, flat, own, negative)
            return
        members = members_of(own, flat.size, flat.count)
        values = (
            self._filled(flat, members, own, base) if flag else self._join(flat.stored, count_of(own, flat.size), base)
        )
        if negative is not None:
            values |= negative.astype(values.dtype) << flat.stored.sign_bit
        flat.integers[members] = values

    def _filled(self, flat: Flat, members: NDArray[np.bool_], own: Patterns, base: int) -> Integers:
        """The values of a tensor some of which are filled."""
        if not flat.stored.low_bits:
            raise PofFileError("a flag says that levels are filled, which have no such thing")
        full = own.dtype.type((1 << flat.size) - 1)
        all_filled = members_of(self._masks.next(own ^ full, flat.size), flat.size, flat.count)
        filled = all_filled[members]
        width = np.dtype(flat.stored.integer).itemsize
        fills = self._fills.take(flat.rows * width).copy().view(flat.stored.integer)
        number = int(np.count_nonzero(filled))
        out = np.empty(len(filled), flat.stored.integer)
        out[filled] = fills[np.flatnonzero(all_filled) // (flat.count // flat.rows)]
        if self._with_signs:
            negative = _unpacked(self._fill_signs.take(-(-number // 8)), number)
            out[filled] |= negative.astype(out.dtype) << flat.stored.sign_bit
        out[~filled] = self._join(flat.stored, len(filled) - number, base)
        return out

    def _fill_fast(self, native: CDLL, flat: Flat, own: Patterns) -> Patterns:
        """Put the filled magnitudes; return the positions that are left."""
        filled = self._masks.next(own ^ own.dtype.type((1 << flat.size) - 1), flat.size)
        width = np.dtype(flat.stored.integer).itemsize
        fills = self._fills.take(flat.rows * width).copy()
        signs = read_signs(self._fill_signs, count_of(filled, flat.size)) if self._with_signs else None
        make = {2: native.pof_row_values16, 4: native.pof_row_values32}.get(width)
        if make is None:
            raise PofFileError("a flag says that levels are filled, which have no such thing")
        values = np.empty(count_of(filled, flat.size) + ROOM + 1, flat.stored.integer)
        make(
            address(filled),
            int64(len(filled)),
            flat.size,
            int64(flat.count // flat.rows),
            address(fills),
            address(signs),
            address(values),
        )
        scatter = native.pof_scatter16 if width == 2 else native.pof_scatter32
        place = (address(filled), int64(len(filled)), flat.size, int64(flat.count))
        scatter(*place, address(values), address(flat.integers))
        return own ^ filled

    def _place_fast(self, native: CDLL, flat: Flat, own: Patterns, base: int, negative: Bytes | None) -> None:
        stored, own = flat.stored, np.ascontiguousarray(own)
        count = int(native.pof_count(address(own), int64(len(own))))
        symbols, planes = self._symbols.take(count), [plane.take(count) for plane in self._planes[stored]]
        if not stored.low_bits:
            values = (np.uint8(base) - symbols) & np.uint8(127)
            if self._with_signs:
                negative = read_signs(self._level_signs, count)
            if negative is not None:
                values |= negative << 7
            scatter = native.pof_scatter8
        else:
            values = np.empty(count + ROOM, stored.integer)
            join = native.pof_join32 if stored.planes == 3 else native.pof_join16
            streams = (address(symbols), base, *map(address, planes), int(self._with_signs), address(negative))
            join(*streams, int64(count), address(values))
            scatter = native.pof_scatter32 if stored.planes == 3 else native.pof_scatter16
        place = (address(own), int64(len(own)), flat.size, int64(flat.count))
        scatter(*place, address(values), address(flat.integers))

    def _join(self, stored: Stored, count: int, base: int) -> Integers:
        symbols: Integers = np.uint8(base) - self._symbols.take(count)
        if not stored.low_bits:
            symbols &= np.uint8(127)
            if self._with_signs:
                symbols |= _unpacked(self._level_signs.take(-(-count // 8)), count) << 7
            return symbols
        joined: Integers = symbols.astype(stored.integer) << stored.low_bits
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
        self._masks.end()
        for cursor in (self._fills, self._fill_signs, self._symbols, *planes, self._level_signs):
            cursor.end()


def _set_signs(native: CDLL, flat: Flat, own: Patterns, negative: Bytes) -> None:
    """Give the weights at the positions `own` their signs."""
    signs = np.zeros(flat.count, np.uint8)
    place = (address(np.ascontiguousarray(own)), int64(len(own)), flat.size, int64(flat.count))
    native.pof_scatter8(*place, address(np.ascontiguousarray(negative)), address(signs))
    flat.integers |= signs.astype(flat.integers.dtype) << flat.stored.sign_bit


def collect(flat: Flat, members: NDArray[np.bool_], own: Patterns) -> Integers:
    """The integers of the `members`, whose patterns are `own`."""
    native = core()
    if native is None:
        return flat.integers[members]
    width = flat.integers.itemsize
    take = {1: native.pof_collect8, 2: native.pof_collect16, 4: native.pof_collect32}[width]
    out = np.empty(count_of(own, flat.size), flat.integers.dtype)
    take(address(own), int64(len(own)), flat.size, address(flat.integers), address(out))
    return out


def write_signs(out: StreamWriter, parts: Sequence[NDArray[np.bool_]]) -> None:
    """A stream of sign bits, each weight starting with a new byte."""
    out.add([_packed(part) for part in parts])


def read_signs(cursor: Cursor, count: int) -> Bytes:
    """The sign bits of one weight, 0 or 1."""
    return _unpacked(cursor.take(-(-count // 8)), count)


def _fills(flat: Flat, members: NDArray[np.bool_], magnitudes: Integers) -> tuple[NDArray[np.bool_] | None, Integers]:
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


def _sign_mask(flat: Flat) -> "np.unsignedinteger[Any]":
    mask: np.unsignedinteger[Any] = flat.stored.integer(1 << flat.stored.sign_bit)
    return mask


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
