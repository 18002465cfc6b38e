"""Write the magnitudes of some weights of every pruned tensor. See SPEC.md."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pof.core.library import address, core, int64
from pof.file.filled_bands import find_fills, sign_mask_of
from pof.file.flat_weights import Flat, packed
from pof.file.position_masks import MaskWriter
from pof.file.position_patterns import Patterns, count_of, patterns_of
from pof.file.streams import Bytes, StreamWriter
from pof.file.weight_integers import KINDS, Integers, Stored


@dataclass
class MagnitudeWriter:
    """Collects the magnitudes of many tensors, and their signs if the chunk has both."""

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
        """Add the magnitudes of the `members` of one tensor, whose patterns are `own`."""
        stored = flat.stored
        chosen = collect(flat, members, own)
        sign_mask = sign_mask_of(flat)
        filled, fills = find_fills(flat, members, chosen & ~sign_mask)
        self._flags.append(int(filled is not None))
        if filled is not None:
            all_filled = np.zeros(flat.count, np.bool_)
            all_filled[members] = filled
            full = own.dtype.type((1 << flat.size) - 1)
            self._masks.add(own ^ full, patterns_of(all_filled, flat.size), flat.size)
            self._fills.append(fills.view(np.uint8))
            if self.with_signs:
                self._fill_signs.append(packed((chosen[filled] & sign_mask) != 0))
            chosen = chosen[~filled]
        self._split(stored, chosen)

    def _split(self, stored: Stored, chosen: Integers) -> None:
        negative = (chosen >> stored.sign_bit).astype(np.uint8)
        symbols = (chosen >> stored.low_bits & ((1 << stored.sign_bit - stored.low_bits) - 1)).astype(np.uint8)
        base = int(symbols.max()) if len(symbols) else 0
        self._bases.append(base)
        self._symbols.append(np.uint8(base) - symbols)
        if not stored.low_bits:
            self._level_signs.append(packed(negative != 0))
            return
        planes = self._planes.setdefault(stored, [[] for _ in range(stored.planes)])
        for number, plane in enumerate(planes):
            last = number == stored.planes - 1
            low = (chosen >> (8 * number) & (127 if last else 255)).astype(np.uint8)
            plane.append(low | negative << 7 if last and self.with_signs else low)

    def write(self, out: StreamWriter) -> None:
        """Add the streams to `out`."""
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
