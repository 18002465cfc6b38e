"""The streams of a chunk: deflated where that helps, never larger in memory than the file can justify."""

import os
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pof.core.large_buffers import fresh, fresh_parts
from pof.core.library import address, addresses, core, int64
from pof.errors import PofFileError

Bytes = NDArray[Any]
"""Of type uint8. Spelled loosely, as all arrays here: numpy types do not survive the arithmetic."""

STORED, DEFLATED, SEVENS = 0, 1, 2
"""As it is; raw deflate; numbers below 128 in 7 bits each, which where they are noise is as small and faster."""
DEFLATE_MOST = 1032
"""Deflate makes at most so many bytes of one."""
SLACK = 64
THREADS = 4
"""Streams that are deflated at the same time, at most."""
BLOCK = 16384
"""Parts of at least so many bytes get code tables of their own."""
SMALL = 1 << 16
"""Streams up to this size are also tried with the slow search for repetitions."""
SAMPLE = 1 << 16
NOISE = 0.015
"""So many bits from the most that there can be, a sample is noise, of which no code can make use."""


class StreamWriter:
    """Collects the streams of one chunk, in order."""

    def __init__(self) -> None:
        self._streams: list[list[Bytes]] = []

    def add(self, parts: Iterable[Bytes]) -> None:
        """One more stream: the parts (one a weight) joined. Parts only guide where code tables change."""
        self._streams.append([part for part in parts if len(part)])

    def chunk(self) -> bytes:
        """The whole chunk."""
        # In threads, as zlib lets others run meanwhile.
        with ThreadPoolExecutor(min(os.cpu_count() or 1, THREADS)) as pool:
            found = list(pool.map(_smallest, self._streams))
        table = [
            varint(sum(map(len, parts))) + varint(len(data)) + bytes([method])
            for parts, (data, method) in zip(self._streams, found, strict=True)
        ]
        return b"".join((varint(len(table)), *table, *(data for data, _ in found)))


class StreamReader:
    """Gives back the streams of one chunk, in order."""

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
        """The last stream, decoded; those before it are passed over."""
        *_, found = self._streams
        return found

    def end(self) -> None:
        """Raise if there are more streams than were read."""
        if next(self._streams, None) is not None:
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
    _check_claim(size, len(data))
    return _inflated([data], [size])[0]


def _decoded(data: memoryview, entries: Sequence[tuple[int, int, int]]) -> list[Bytes]:
    """All streams of a chunk, from their bytes and the table of sizes, lengths and methods."""
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
    # Long ones first, as several are decoded side by side.
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
        raise PofFileError(f"a stream cannot be inflated ({error})") from None
    if len(found) != size or rest or not unpacker.eof or unpacker.unused_data:
        raise PofFileError("a stream has another length than it claims")
    return np.frombuffer(found, np.uint8)


def _check_claim(size: int, length: int) -> None:
    """Raise if no deflated stream of `length` bytes can hold `size` of them: before memory is asked for."""
    if size > DEFLATE_MOST * length + SLACK:
        raise PofFileError(f"{length} bytes claim to hold {size}")


def _smallest(parts: Sequence[Bytes]) -> tuple[bytes, int]:
    """The shortest way to write the parts, and its number."""
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
        # A sample shows which is better.
        sample = [stored[: SAMPLE // 2], stored[-SAMPLE // 2 :]]
        strategies = [min(strategies, key=lambda strategy: len(deflate(sample, strategy)))]
    found = [deflate(parts, strategy) for strategy in strategies]
    if size <= SMALL:
        found.append(deflate(parts))
    best = min(found, key=len)
    return (best, DEFLATED) if len(best) < size else (stored, STORED)


def _sampled_entropy(data: bytes) -> float:
    """Bits a byte of a sample, taken as independent."""
    counts = np.bincount(np.frombuffer(data, np.uint8)[:: max(1, len(data) // SAMPLE)], minlength=256)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def sevens_length(count: int) -> int:
    """Bytes of so many numbers of 7 bits; every 8 of them fill 7 bytes."""
    return 7 * (-(-count // 8))


def _to_sevens(numbers: Bytes) -> Bytes:
    """Each 8 numbers as one of 56 bits, the first lowest; the last ones are filled up with zeros."""
    lanes = np.zeros((-(-len(numbers) // 8), 8), np.uint8)
    lanes.reshape(-1)[: len(numbers)] = numbers
    words = np.zeros(len(lanes), np.uint64)
    for lane in range(8):
        words |= lanes[:, lane].astype(np.uint64) << np.uint64(7 * lane)
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :7].reshape(-1)


def _from_sevens(packed: Bytes, count: int) -> Bytes:
    """The inverse of `_to_sevens`; what fills up the end must be zero."""
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
