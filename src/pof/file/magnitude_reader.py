"""Read the magnitudes of some weights of every pruned tensor, and place them. See SPEC.md."""

import ctypes
from ctypes import CDLL, c_void_p

import numpy as np
from numpy.typing import NDArray

from pof.core.library import address, core, int64
from pof.core.structures import PlacingStruct
from pof.errors import PofFileError
from pof.file.cursor import Cursor
from pof.file.flat_weights import Flat, read_signs, unpacked
from pof.file.position_masks import MaskReader
from pof.file.position_patterns import Patterns, count_of, members_of
from pof.file.streams import Bytes, StreamReader
from pof.file.weight_integers import KINDS, Integers, Stored, widened


class MagnitudeReader:
    """Reads magnitudes, tensor by tensor, in the order in which they were added."""

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
        """Place the magnitudes of the next tensor at its positions `own`.

        Their signs are in the chunk, or in `negative` as 0 or 1.
        """
        flag, base = int(next(self._flags)), int(next(self._bases))
        if flag > 1:
            raise PofFileError("a flag is neither 0 nor 1")
        if base > flat.most:
            raise PofFileError("a weight is not finite")
        native = core()
        if native is not None:
            self._place_fast(native, flat, own, base, None if flag else negative, filled=bool(flag))
            if flag and negative is not None:
                _set_signs(native, flat, own, negative)
            return
        members = members_of(own, flat.size, flat.count)
        if flag:
            whole = self._filled(flat, members, own, base)
            if negative is not None:
                whole |= _signs_at(members, negative, flat.stored)
            flat.integers |= widened(whole) if flat.wide else whole
            return
        values = self._join(flat.stored, count_of(own, flat.size), base)
        if negative is not None:
            values |= negative.astype(values.dtype) << flat.stored.sign_bit
        flat.integers[np.flatnonzero(members)] = widened(values) if flat.wide else values

    def _filled(self, flat: Flat, members: NDArray[np.bool_], own: Patterns, base: int) -> Integers:
        """The values of a tensor with filled weights; zero where it has no weights."""
        if not flat.stored.low_bits:
            raise PofFileError("a flag says that int8 levels are filled, which they cannot be")
        full = own.dtype.type((1 << flat.size) - 1)
        filled = members_of(self._masks.next(own ^ full, flat.size), flat.size, flat.count)
        fills = self._taken_fills(flat)
        # Work on whole tensors, as numpy is far slower at picking single weights.
        out: Integers = (filled.reshape(flat.rows, -1) * fills[:, None]).reshape(-1)
        number = int(np.count_nonzero(filled))
        if self._with_signs:
            out |= _signs_at(filled, unpacked(self._fill_signs.take(-(-number // 8)), number), flat.stored)
        plain = np.flatnonzero(members & ~filled)
        out[plain] = self._join(flat.stored, len(plain), base)
        return out

    def _place_fast(
        self, native: CDLL, flat: Flat, own: Patterns, base: int, negative: Bytes | None, *, filled: bool
    ) -> None:
        stored, fills, fill_signs, filled_own = flat.stored, None, None, None
        if filled:
            if not stored.low_bits:
                raise PofFileError("a flag says that int8 levels are filled, which they cannot be")
            filled_own = self._masks.next(own ^ own.dtype.type((1 << flat.size) - 1), flat.size)
            fills = self._taken_fills(flat).view(np.uint8)
            if self._with_signs:
                fill_signs = self._fill_signs.take(-(-count_of(filled_own, flat.size) // 8))
            own = own ^ filled_own
        count = count_of(own, flat.size)
        symbols, planes = self._taken_symbols(count, base), [plane.take(count) for plane in self._planes[stored]]
        if not stored.low_bits:
            values = (np.uint8(base) - symbols) & np.uint8(127)
            if self._with_signs:
                negative = read_signs(self._level_signs, count)
            if negative is not None:
                values |= negative << 7
            native.pof_scatter8(address(own), int64(len(own)), flat.size, address(values), address(flat.integers))
            return
        placing = PlacingStruct(
            plain=address(own), filled=address(filled_own), groups=len(own), count=flat.count,
            length=max(1, flat.count // max(1, flat.rows)), fill_bytes=0 if fill_signs is None else len(fill_signs),
            symbols=address(symbols), planes=(c_void_p * 3)(*(plane.ctypes.data for plane in planes)),
            signs=address(negative), fill_signs=address(fill_signs), fills=address(fills), out=address(flat.integers),
            size=flat.size, base=base, signed_planes=int(self._with_signs), wide=int(flat.wide),
        )  # fmt: skip
        (native.pof_place32 if stored.bytes == 4 else native.pof_place16)(ctypes.byref(placing))

    def _join(self, stored: Stored, count: int, base: int) -> Integers:
        symbols: Integers = np.uint8(base) - self._taken_symbols(count, base)
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

    def _taken_symbols(self, count: int, base: int) -> Bytes:
        """The next symbols, which count down from `base`, the largest."""
        symbols = self._symbols.take(count)
        if count and symbols.max() > base:
            raise PofFileError("a symbol is larger than the largest")
        return symbols

    def _taken_fills(self, flat: Flat) -> Integers:
        """The fill magnitude of each row of the next tensor."""
        fills: Integers = self._fills.take(flat.rows * flat.stored.bytes).copy().view(flat.stored.integer)
        if (fills >> flat.stored.low_bits).max(initial=0) > flat.most:
            raise PofFileError("the fill magnitude of a row is not finite")
        return fills

    def end(self) -> None:
        """Raise an error if anything is left."""
        planes = [plane for kind in self._planes.values() for plane in kind]
        self._masks.end()
        for cursor in (self._fills, self._fill_signs, self._symbols, *planes, self._level_signs):
            cursor.end()


def _signs_at(members: NDArray[np.bool_], negative: Bytes, stored: Stored) -> Integers:
    """The signs at the `members`, as sign bits of a whole tensor."""
    signs: Integers = np.zeros(len(members), stored.integer)
    # Use positions, as numpy is several times slower at writing through a mask.
    signs[np.flatnonzero(members)] = negative.astype(stored.integer) << stored.sign_bit
    return signs


def _set_signs(native: CDLL, flat: Flat, own: Patterns, negative: Bytes) -> None:
    """Give the weights at the positions `own` their signs."""
    signs = np.zeros(flat.count, np.uint8)
    native.pof_scatter8(address(own), int64(len(own)), flat.size, address(negative), address(signs))
    flat.integers |= signs.astype(flat.integers.dtype) << flat.sign_bit


def _exactly(data: Bytes, count: int) -> Bytes:
    if len(data) != count:
        raise PofFileError("a stream does not have one byte per tensor")
    return data
