"""The magnitudes of some of the weights of every pruned tensor, read and put to their places. See SPEC.md."""

from ctypes import CDLL

import numpy as np
from numpy.typing import NDArray

from pof.errors import PofFileError
from pof.file.cursor import Cursor
from pof.file.flat import Flat, read_signs, unpacked
from pof.file.masks import MaskReader
from pof.file.numbers import KINDS, Integers, Stored
from pof.file.patterns import Patterns, count_of, members_of
from pof.file.streams import Bytes, StreamReader
from pof.native import address, core, int64


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
            negative = unpacked(self._fill_signs.take(-(-number // 8)), number)
            out[filled] |= negative.astype(out.dtype) << flat.stored.sign_bit
        out[~filled] = self._join(flat.stored, len(filled) - number, base)
        return out

    def _fill_fast(self, native: CDLL, flat: Flat, own: Patterns) -> Patterns:
        """Put the filled magnitudes; return the positions that are left."""
        filled = self._masks.next(own ^ own.dtype.type((1 << flat.size) - 1), flat.size)
        width = np.dtype(flat.stored.integer).itemsize
        fill = {2: native.pof_fill16, 4: native.pof_fill32}.get(width)
        if fill is None:
            raise PofFileError("a flag says that levels are filled, which have no such thing")
        fills = self._fills.take(flat.rows * width).copy()
        signs = self._fill_signs.take(-(-count_of(filled, flat.size) // 8)) if self._with_signs else None
        place = (address(filled), int64(len(filled)), flat.size, int64(flat.count // flat.rows))
        bits = (address(signs), int64(0 if signs is None else len(signs)))
        fill(*place, *bits, address(fills), address(flat.integers))
        return own ^ filled

    def _place_fast(self, native: CDLL, flat: Flat, own: Patterns, base: int, negative: Bytes | None) -> None:
        stored = flat.stored
        count = int(native.pof_count(address(own), int64(len(own))))
        symbols, planes = self._symbols.take(count), [plane.take(count) for plane in self._planes[stored]]
        where = (address(own), int64(len(own)), flat.size)
        if not stored.low_bits:
            values = (np.uint8(base) - symbols) & np.uint8(127)
            if self._with_signs:
                negative = read_signs(self._level_signs, count)
            if negative is not None:
                values |= negative << 7
            native.pof_scatter8(*where, address(values), address(flat.integers))
            return
        place = native.pof_place32 if stored.planes == 3 else native.pof_place16
        low = [address(plane) for plane in (*planes, None, None)][:3]
        streams = (address(symbols), base, *low, int(self._with_signs), address(negative))
        place(*where, int64(flat.count), *streams, address(flat.integers))

    def _join(self, stored: Stored, count: int, base: int) -> Integers:
        symbols: Integers = np.uint8(base) - self._symbols.take(count)
        if not stored.low_bits:
            symbols &= np.uint8(127)
            if self._with_signs:
                symbols |= unpacked(self._level_signs.take(-(-count // 8)), count) << 7
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
    native.pof_scatter8(address(own), int64(len(own)), flat.size, address(negative), address(signs))
    flat.integers |= signs.astype(flat.integers.dtype) << flat.stored.sign_bit


def _exactly(data: Bytes, count: int) -> Bytes:
    if len(data) != count:
        raise PofFileError("a stream has not one byte for each weight")
    return data
