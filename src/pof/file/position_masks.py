"""Code positions as streams of symbols. See "Positions" in SPEC.md."""

from ctypes import CDLL
from dataclasses import dataclass, field

import numpy as np

from pof.core.library import address, addresses, core, int64
from pof.errors import PofFileError
from pof.file.cursor import Cursor
from pof.file.position_patterns import KERNEL, Patterns, Symbols, gather_table, ones, spread_table
from pof.file.streams import Bytes, StreamReader, StreamWriter

PER_BYTE = {1: 8, 2: 4, 3: 2, 4: 2}
"""How many symbols share a byte, by their number of bits; larger symbols take one byte each."""


def _contexts(size: int) -> range:
    return range(1, size + 1)


@dataclass
class MaskWriter:
    """Collects the symbols of many tensors, by context: the number of free positions in a group."""

    _parts: dict[tuple[int, int], list[Bytes]] = field(default_factory=dict)
    _ninth: dict[int, list[Bytes]] = field(default_factory=dict)

    def add(self, taken: Patterns, own: Patterns, size: int) -> None:
        """Add the positions `own` of one tensor, which are among those that are not `taken`."""
        native = core()
        if native is not None:
            self._add_fast(native, taken, own, size)
            return
        full = (1 << size) - 1
        free = taken ^ full
        symbols = gather_table(size)[free.astype(np.uint32) << size | own]
        counts = ones(size)[free]
        for context in _contexts(size):
            chosen = symbols if bool((counts == context).all()) else symbols[counts == context]
            if len(chosen) == 0:
                continue
            if context == KERNEL:
                self._add_ninth(chosen)
                chosen = chosen & 255
            self._parts.setdefault((size, context), []).append(_pack(chosen.astype(np.uint8), context))

    def _add_fast(self, native: CDLL, taken: Patterns, own: Patterns, size: int) -> None:
        buffers = [np.empty(len(own), np.uint8) for _ in range(18)]
        counts = np.zeros(18, np.int64)
        taken, own = np.ascontiguousarray(taken), np.ascontiguousarray(own)
        table = address(gather_table(size))
        native.pof_gather(
            address(taken), address(own), int64(len(own)), size, table, addresses(buffers), address(counts)
        )
        for context, (buffer, count) in enumerate(zip(buffers[:9], counts[:9], strict=True), start=1):
            if count:
                self._parts.setdefault((size, context), []).append(_pack(buffer[:count].copy(), context))
        for number, (buffer, count) in enumerate(zip(buffers[9:], counts[9:], strict=True)):
            if count:
                self._ninth.setdefault(number, []).append(np.packbits(buffer[:count], bitorder="little"))

    def _add_ninth(self, symbols: Symbols) -> None:
        low, ninth = ones(8)[symbols & 255], (symbols >> 8).astype(np.uint8)
        for number in range(9):
            chosen = ninth[low == number]
            if len(chosen):
                self._ninth.setdefault(number, []).append(np.packbits(chosen, bitorder="little"))

    def write(self, out: StreamWriter) -> None:
        """Add the 26 streams to `out`."""
        for size in (8, KERNEL):
            for context in _contexts(size):
                out.add(self._parts.get((size, context), []))
        for number in range(9):
            out.add(self._ninth.get(number, []))


class MaskReader:
    """Reads the patterns of many tensors, in the order in which they were added."""

    def __init__(self, streams: StreamReader) -> None:
        self._streams = {(size, context): Cursor(streams.next()) for size in (8, KERNEL) for context in _contexts(size)}
        self._ninth = [Cursor(streams.next()) for _ in range(9)]
        self._fast: dict[int, _Fast] = {}

    def next(self, taken: Patterns, size: int) -> Patterns:
        """The positions of the next tensor, which are among those that are not `taken`."""
        native = core()
        if native is not None:
            return self._next_fast(native, taken, size)
        full = (1 << size) - 1
        free = taken ^ full
        counts = ones(size)[free]
        own = np.zeros_like(taken)
        numbers = np.bincount(counts, minlength=size + 1)
        for context in _contexts(size):
            number = int(numbers[context])
            if number == 0:
                continue
            symbols = _unpack(self._streams[size, context], number, context)
            if context == KERNEL:
                symbols = self._with_ninth(symbols)
            if number == len(own):
                own = spread_table(size)[free.astype(np.uint32) << size | symbols]
            else:
                where = np.flatnonzero(counts == context)
                own[where] = spread_table(size)[free[where].astype(np.uint32) << size | symbols]
        return own

    def _next_fast(self, native: CDLL, taken: Patterns, size: int) -> Patterns:
        streams = self._fast.get(size)
        if streams is None:
            streams = self._fast[size] = _Fast(
                [self._streams.get((size, u), _NOTHING) for u in range(1, 10)] + self._ninth
            )
        own = np.empty_like(taken)
        if native.pof_spread(
            address(taken), int64(len(taken)), size, address(spread_table(size)), *streams.arguments, address(own)
        ):
            raise PofFileError("a stream is too short")
        return own

    def _with_ninth(self, low: Bytes) -> Symbols:
        counts, symbols = ones(8)[low], low.astype(np.uint16)
        for number in range(9):
            where = np.flatnonzero(counts == number)
            if len(where):
                packed = self._ninth[number].take(-(-len(where) // 8))
                symbols[where] |= np.unpackbits(packed, count=len(where), bitorder="little").astype(np.uint16) << 8
        return symbols

    def end(self) -> None:
        """Raise an error if anything is left."""
        for streams in self._fast.values():
            streams.forward()
        for cursor in (*self._streams.values(), *self._ninth):
            cursor.end()


class _Fast:
    """The streams for one group size, which the compiled core reads from tensor to tensor."""

    def __init__(self, cursors: list[Cursor]) -> None:
        self._cursors = cursors
        self._streams = [cursor.left() for cursor in cursors]
        self._lengths = np.array([len(stream) for stream in self._streams], np.int64)
        self._used = np.zeros(len(cursors), np.int64)
        self.arguments = (addresses(self._streams), address(self._lengths), address(self._used))

    def forward(self) -> None:
        """Move the cursors past what the core has read."""
        for cursor, used in zip(self._cursors, self._used.tolist(), strict=True):
            cursor.take(used)


_NOTHING = Cursor(np.empty(0, np.uint8))


def _pack(symbols: Bytes, context: int) -> Bytes:
    per_byte = PER_BYTE.get(context, 1)
    if per_byte == 1:
        return symbols
    bits = 8 // per_byte
    padded = np.zeros(-(-len(symbols) // per_byte) * per_byte, np.uint8)
    padded[: len(symbols)] = symbols
    lanes = padded.reshape(-1, per_byte)
    packed: Bytes = lanes[:, 0].copy()
    for lane in range(1, per_byte):
        packed |= lanes[:, lane] << (bits * lane)
    return packed


def _unpack(cursor: Cursor, count: int, context: int) -> Bytes:
    per_byte = PER_BYTE.get(context, 1)
    packed = cursor.take(-(-count // per_byte))
    if per_byte == 1:
        return packed
    bits = 8 // per_byte
    lanes = np.empty((len(packed), per_byte), np.uint8)
    for lane in range(per_byte):
        lanes[:, lane] = packed >> (bits * lane) & ((1 << context) - 1)
    return lanes.reshape(-1)[:count]
