"""The streams of a chunk: deflated where that helps, and never larger in memory than their length allows."""

import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pof.core.large_buffers import fresh, fresh_parts
from pof.core.library import address, addresses, core, int64
from pof.errors import PofFileError, first_line

Bytes = NDArray[Any]
"""An array of uint8. Its type is loose, as for all arrays here: numpy's types do not survive arithmetic."""

STORED, DEFLATED, SEVENS = 0, 1, 2
"""How a stream is stored: unchanged, by raw deflate, or as 7-bit numbers (for noise as small, and faster)."""
DEFLATE_MOST = 1032
"""The most bytes that one byte of deflate can expand to."""
SLACK = 64
THREADS = 4
"""How many streams are deflated at the same time, at most."""
BLOCK = 16384
"""Parts of at least this many bytes get their own code tables."""
SMALL = 1 << 16
"""Streams up to this size are also tried with the slow search for repetitions."""
SAMPLE = 1 << 16
NOISE = 0.015
"""If a sample's entropy is within this many bits of the maximum, it is noise, which no code can shrink."""


class StreamWriter:
    """Collects the streams of one chunk, in order."""

    def __init__(self) -> None:
        self._streams: list[list[Bytes]] = []

    def add(self, parts: Iterable[Bytes]) -> None:
        """Add a stream: the parts (one per tensor), joined. They only determine where code tables may change."""
        self._streams.append([part for part in parts if len(part)])

    def chunk(self) -> bytes:
        """The whole chunk."""
        # Threads help here, as zlib releases the interpreter lock.
        with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS)) as pool:
            found = list(pool.map(_smallest, self._streams))
        table = [
            varint(sum(map(len, parts))) + varint(len(data)) + bytes([method])
            for parts, (data, method) in zip(self._streams, found, strict=True)
        ]
        return b"".join((varint(len(table)), *table, *(data for data, _ in found)))


class StreamReader:
    """Reads the streams of one chunk, in order."""

    def __init__(self, chunk: bytes | memoryview) -> None:
        cursor = VarintReader(np.frombuffer(chunk, np.uint8))
        count = cursor.next()
        if count > len(chunk):
            raise PofFileError("a chunk claims more streams than it has bytes")
        entries = [(cursor.next(), cursor.next(), cursor.byte()) for _ in range(count)]
        if cursor.position + sum(length for _, length, _ in entries) != len(chunk):
            raise PofFileError("the streams of a chunk do not add up to its length")
        self._streams = iter(_decoded(memoryview(chunk)[cursor.position :], entries))

    def next(self) -> Bytes:
        """The next stream, decoded."""
        found = next(self._streams, None)
        if found is None:
            raise PofFileError("a chunk has too few streams")
        return found

    def last(self) -> Bytes:
        """The last stream, decoded; those before it are skipped."""
        *_, found = self._streams
        return found

    def end(self) -> None:
        """Raise an error if there are more streams than were read."""
        if next(self._streams, None) is not None:
            raise PofFileError("a chunk has too many streams")


class VarintReader:
    """Reads varints from an array of bytes."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.position = 0

    def byte(self) -> int:
        """The next byte."""
        if self.position >= len(self._data):
            raise PofFileError("a list of numbers ends too early")
        value = int(self._data[self.position])
        self.position += 1
        return value

    def next(self) -> int:
        """The next number, of up to 63 bits."""
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
    """The number in seven bits per byte, low bits first."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def deflate(parts: Sequence[Bytes | bytes], strategy: int = zlib.Z_DEFAULT_STRATEGY, level: int = 9) -> bytes:
    """Raw deflate of the joined parts; a large part starts new code tables."""
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
    """Inflate `data` to exactly `size` bytes; any other length is an error, and nothing larger is ever allocated."""
    _check_claim(size, len(data))
    return _inflated([data], [size])[0]


def _decoded(data: memoryview, entries: Sequence[tuple[int, int, int]]) -> list[Bytes]:
    """Decode all streams of a chunk from their bytes and the table of sizes, lengths and methods."""
    streams, position, deflated = [], 0, []
    for number, (size, length, method) in enumerate(entries):
        streams.append(np.frombuffer(data[position : position + length], np.uint8))
        position += length
        if method == DEFLATED:
            _check_claim(size, length)
            deflated.append(number)
        elif method == SEVENS:
            if length != sevens_length(size):
                raise PofFileError("a stream of 7-bit numbers has a wrong length")
            streams[number] = _from_sevens(streams[number], size)
        elif method != STORED:
            raise PofFileError(f"a stream has the unknown method {method}")
        elif size != length:
            raise PofFileError("a stored stream has a wrong length")
    # Long ones come first, as several are decoded in parallel.
    deflated.sort(key=lambda number: -entries[number][1])
    found = _inflated([streams[number].data for number in deflated], [entries[number][0] for number in deflated])
    for number, stream in zip(deflated, found, strict=True):
        streams[number] = stream
    return streams


def _inflated(packed: Sequence[bytes | memoryview], sizes: Sequence[int]) -> list[Bytes]:
    native = core()
    if native is None:
        return [_inflated_by_zlib(data, size) for data, size in zip(packed, sizes, strict=True)]
    sources, out = [np.frombuffer(data, np.uint8) for data in packed], fresh_parts(sizes)
    lengths = np.array([len(source) for source in sources], np.int64)
    streams = (int64(len(packed)), addresses(sources), address(lengths))
    if native.pof_inflate(*streams, addresses(out), address(np.array(sizes, np.int64))):
        raise PofFileError("a stream cannot be inflated to the length that it claims")
    return out


def _inflated_by_zlib(data: bytes | memoryview, size: int) -> Bytes:
    unpacker = zlib.decompressobj(-15)
    try:
        found = unpacker.decompress(data, max(size, 1))
        rest = b"" if unpacker.eof else unpacker.decompress(unpacker.unconsumed_tail, 1)
    except zlib.error as error:
        raise PofFileError(f"a stream cannot be inflated ({first_line(error)})") from None
    if len(found) != size or rest or not unpacker.eof or unpacker.unused_data:
        raise PofFileError("a stream does not have the length that it claims")
    return np.frombuffer(found, np.uint8)


def _check_claim(size: int, length: int) -> None:
    """Refuse a `size` that `length` deflated bytes cannot hold, before any memory is allocated."""
    if size > DEFLATE_MOST * length + SLACK:
        raise PofFileError(f"{length} bytes claim to hold {size}")


def _smallest(parts: Sequence[Bytes]) -> tuple[bytes, int]:
    """The parts in their shortest form, and the number of its method."""
    size = sum(map(len, parts))
    stored = b"".join(part.tobytes() for part in parts)
    entropy = _sampled_entropy(stored) if size > SMALL else 0.0
    if not size or entropy > 8 - NOISE:
        return stored, STORED
    if entropy > 7 - NOISE:
        numbers = np.frombuffer(stored, np.uint8)
        if numbers.max() < 128:
            return _to_sevens(numbers).tobytes(), SEVENS
    strategies = [zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE]
    if size > SMALL:
        # A sample shows which strategy is better.
        sample = [stored[: SAMPLE // 2], stored[-SAMPLE // 2 :]]
        strategies = [min(strategies, key=lambda strategy: len(deflate(sample, strategy)))]
    found = [deflate(parts, strategy) for strategy in strategies]
    if size <= SMALL:
        found.append(deflate(parts))
    best = min(found, key=len)
    return (best, DEFLATED) if len(best) < size else (stored, STORED)


def _sampled_entropy(data: bytes) -> float:
    """The entropy of a sample in bits per byte, with bytes taken as independent."""
    counts = np.bincount(np.frombuffer(data, np.uint8)[:: max(1, len(data) // SAMPLE)], minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def sevens_length(count: int) -> int:
    """The bytes that `count` 7-bit numbers take; every 8 of them fill 7 bytes."""
    return 7 * (-(-count // 8))


def _to_sevens(numbers: Bytes) -> Bytes:
    """Pack every 8 numbers into one of 56 bits, the first one lowest; zeros fill up the last 8."""
    lanes = np.zeros((-(-len(numbers) // 8), 8), np.uint8)
    lanes.reshape(-1)[: len(numbers)] = numbers
    words = np.zeros(len(lanes), np.uint64)
    for lane in range(8):
        words |= lanes[:, lane].astype(np.uint64) << np.uint64(7 * lane)
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :7].reshape(-1)


def _from_sevens(packed: Bytes, count: int) -> Bytes:
    """The inverse of `_to_sevens`; the numbers that fill up the end must be zero."""
    out = fresh(8 * (len(packed) // 7))
    native = core()
    if native is not None:
        native.pof_from_sevens(address(packed), int64(len(packed) // 7), address(out))
    else:
        words = np.zeros((len(packed) // 7, 8), np.uint8)
        words[:, :7] = packed.reshape(-1, 7)
        lanes, whole = out.reshape(-1, 8), words.view("<u8").reshape(-1)
        for lane in range(8):
            lanes[:, lane] = whole >> np.uint64(7 * lane) & np.uint64(127)
    if out[count:].any():
        raise PofFileError("a stream of 7-bit numbers does not end with zeros")
    return out[:count]
