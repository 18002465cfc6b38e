"""One tensor as flat integers, and its signs as bits: the part that writing and reading share."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pof.file.cursor import Cursor
from pof.file.position_patterns import Patterns
from pof.file.streams import Bytes, StreamWriter
from pof.file.weight_integers import Integers, Stored


@dataclass
class Flat:
    """One tensor as flat integers, and which of its positions are taken already."""

    size: int
    """The number of positions in a group: 8 or 9."""
    rows: int
    stored: Stored
    integers: Integers
    taken: Patterns
    most: int = 255
    """The largest symbol that a finite number can have."""

    @property
    def wide(self) -> bool:
        """Whether the integers are those of float32 although the weights are stored as float16."""
        return self.integers.itemsize > self.stored.bytes

    @property
    def sign_bit(self) -> int:
        """The position of the sign bit in an integer."""
        return 8 * self.integers.itemsize - 1

    @property
    def count(self) -> int:
        """The number of weights."""
        return len(self.integers)


def write_signs(out: StreamWriter, parts: Sequence[NDArray[np.bool_]]) -> None:
    """Add a stream of sign bits; each tensor starts with a new byte."""
    out.add([packed(part) for part in parts])


def read_signs(cursor: Cursor, count: int) -> Bytes:
    """The sign bits of one tensor, as 0 or 1."""
    return unpacked(cursor.take(-(-count // 8)), count)


def packed(bits: NDArray[np.bool_]) -> Bytes:
    """The bits, eight per byte, low bit first."""
    return np.packbits(bits, bitorder="little")


def unpacked(packed: Bytes, count: int) -> Bytes:
    """The inverse of `packed`: `count` bytes of 0 or 1."""
    return np.unpackbits(packed, count=count, bitorder="little")
