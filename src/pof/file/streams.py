"""The streams of a chunk: deflated where that helps, never larger in memory than the file can justify."""

import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pof.errors import PofFileError
from pof.native import address, core, int64

Bytes = NDArray[Any]
"""Of type uint8. Spelled loosely, as all arrays here: numpy types do not survive the arithmetic."""

STORED, DEFLATED = 0, 1
DEFLATE_MOST = 1032
"""Deflate makes at most so many bytes of one."""
SLACK = 64
BLOCK = 16384
"""Parts of at least so many bytes get code tables of their own."""
SMALL = 1 << 16
"""Streams up to this size are also tried with the slow search for repetitions."""
SAMPLE = 1 << 16


class StreamWriter:
    """Collects the streams of one chunk, in order."""

    def __init__(self) -> None:
        self._table: list[bytes] = []
        self._data: list[bytes] = []

    def add(self, parts: Iterable[Bytes]) -> None:
        """One more stream: the parts (one a weight) joined. Parts only guide where code tables change."""
        raw = [part for part in parts if len(part)]
        size = sum(map(len, raw))
        data, method = _smallest(raw, size)
        self._table.append(varint(size) + varint(len(data)) + bytes([method]))
        self._data.append(data)

    def chunk(self) -> bytes:
        """The whole chunk."""
        return b"".join((varint(len(self._table)), *self._table, *self._data))


class StreamReader:
    """Gives back the streams of one chunk, in order."""

    def __init__(self, chunk: bytes | memoryview) -> None:
        self._chunk = memoryview(chunk)
        cursor = VarintReader(np.frombuffer(chunk, np.uint8))
        count = cursor.next()
        if count > len(chunk):
            raise PofFileError("a chunk claims more streams than it has bytes")
        entries = [(cursor.next(), cursor.next(), cursor.byte()) for _ in range(count)]
        if cursor.position + sum(length for _, length, _ in entries) != len(chunk):
            raise PofFileError("the streams of a chunk do not add up to its length")
        self._entries = iter(entries)
        self._position = cursor.position

    def next(self) -> Bytes:
        """The next stream, decoded."""
        entry = next(self._entries, None)
        if entry is None:
            raise PofFileError("a chunk has too few streams")
        size, length, method = entry
        data = self._chunk[self._position : self._position + length]
        self._position += length
        if method == STORED:
            if size != length:
                raise PofFileError("a stored stream has a wrong length")
            return np.frombuffer(data, np.uint8)
        if method != DEFLATED:
            raise PofFileError(f"a stream has the unknown method {method}")
        return inflate(data, size)

    def end(self) -> None:
        """Raise if there are more streams than were read."""
        if next(self._entries, None) is not None:
            raise PofFileError("a chunk has too many streams")


class VarintReader:
    """Reads varints from bytes."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.position = 0

    def byte(self) -> int:
        """One byte."""
        if self.position >= len(self._data):
            raise PofFileError("a list of numbers ends too early")
        value = int(self._data[self.position])
        self.position += 1
        return value

    def next(self) -> int:
        """One number of up to 63 bits."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 56:
                raise PofFileError("a number is too large")


def varint(value: int) -> bytes:
    """Seven bits a byte, low bits first."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def deflate(parts: Sequence[Bytes | bytes], strategy: int = zlib.Z_DEFAULT_STRATEGY, level: int = 9) -> bytes:
    """Raw deflate of the parts joined; a large part begins with new code tables."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
    out, pending = [], 0
    for part in parts:
        if pending >= BLOCK and len(part) >= BLOCK:
            out.append(packer.flush(zlib.Z_BLOCK))
            pending = 0
        out.append(packer.compress(part.tobytes() if isinstance(part, np.ndarray) else part))
        pending += len(part)
    return b"".join((*out, packer.flush()))


def inflate(data: bytes | memoryview, size: int) -> Bytes:
    """The `size` bytes that `data` holds; anything else is an error. Nothing larger is ever allocated."""
    if size > DEFLATE_MOST * len(data) + SLACK:
        raise PofFileError(f"{len(data)} bytes claim to hold {size}")
    native = core()
    if native is not None:
        packed, out = np.frombuffer(data, np.uint8), np.empty(size, np.uint8)
        if native.pof_inflate(address(packed), int64(len(packed)), address(out), int64(size)):
            raise PofFileError("a stream cannot be inflated to the length that it claims")
        return out
    unpacker = zlib.decompressobj(-15)
    try:
        found = unpacker.decompress(data, max(size, 1))
        rest = b"" if unpacker.eof else unpacker.decompress(unpacker.unconsumed_tail, 1)
    except zlib.error as error:
        raise PofFileError(f"a stream cannot be inflated ({error})") from None
    if len(found) != size or rest or not unpacker.eof or unpacker.unused_data:
        raise PofFileError("a stream has another length than it claims")
    return np.frombuffer(found, np.uint8)


def _smallest(parts: Sequence[Bytes], size: int) -> tuple[bytes, int]:
    """The shortest way to write the parts."""
    stored = b"".join(part.tobytes() for part in parts)
    if not size or _is_noise(stored):
        return stored, STORED
    strategies = [zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE]
    if size > SMALL:
        # A sample shows which is better.
        sample = [stored[: SAMPLE // 2], stored[-SAMPLE // 2 :]]
        strategies = [min(strategies, key=lambda strategy: len(deflate(sample, strategy)))]
    found = [deflate(parts, strategy) for strategy in strategies]
    if size <= SMALL:
        found.append(deflate(parts))
    best = min(found, key=len)
    return (best, DEFLATED) if len(best) < size else (stored, STORED)


def _is_noise(data: bytes) -> bool:
    """Whether a large stream has no order of which a code could make use."""
    if len(data) < SMALL:
        return False
    counts = np.bincount(np.frombuffer(data, np.uint8)[:: max(1, len(data) // SAMPLE)], minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum()) > 7.985
