"""Decode chunks into tensors. See SPEC.md."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pof.core.large_buffers import fresh_parts
from pof.errors import PofFileError
from pof.file import statistics_stream, stored_statistics
from pof.file.chunk_layout import Chunk, Needed
from pof.file.cursor import Cursor
from pof.file.flat_weights import Flat, read_signs
from pof.file.header import Head, TensorInfo
from pof.file.magnitude_reader import MagnitudeReader
from pof.file.number_types import WIDTHS
from pof.file.position_masks import MaskReader
from pof.file.position_patterns import Patterns, count_of, group_size, members_of, taken_beyond
from pof.file.streams import StreamReader
from pof.file.weight_integers import DTYPES, held_as, largest_symbol, stored_kind, to_weight
from pof.ranking.sparsity_state import State


class Decoder:
    """Reads all or some of a file's chunks, in order, and returns the tensors that they hold."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.plain: dict[str, Tensor] = {}
        self.statistics: dict[State, statistics_stream.RealDifferences] = {}
        self.norm_layers: list[statistics_stream.Norm] = []
        self._pruned = head.of_role("pruned")
        self._flats = _empty(self._pruned, head.values)
        self._norms: dict[str, Tensor] = {}
        self._scales: dict[str, Tensor] = {}
        self._signs: dict[int, list[tuple[Patterns, NDArray[np.uint8]]]] = {}
        """For each boundary whose signs were read: positions and signs, one pair per pruned tensor."""
        self._alphas: dict[int, NDArray[np.float32]] = {}

    def read(self, chunk: Chunk, data: bytes | memoryview) -> None:
        """Read the next chunk."""
        streams = StreamReader(data)
        kind, boundary = chunk
        if kind == "base":
            self._read_base(streams)
        elif kind == "signs":
            self._read_signs(streams, boundary)
        elif kind == "magnitudes":
            self._read_magnitudes(streams, boundary)
        else:
            self._read_values(streams, rest=kind == "rest")
        channels = sum(self.plain[name].numel() for norm in self.norm_layers for name in norm)
        for state, steps in statistics_stream.decode(streams.next(), channels).items():
            self.statistics[state] = stored_statistics.real(self.plain, steps, self.norm_layers)
        streams.end()

    def weights(self) -> dict[str, Tensor]:
        """The pruned tensors, with all values read so far and zeros elsewhere."""
        return {
            info.name: to_weight(
                flat.integers, DTYPES[info.dtype], info.shape, self.head.values, self._scales.get(info.name)
            )
            for info, flat in zip(self._pruned, self._flats, strict=True)
        }

    def norms(self, info: TensorInfo) -> Tensor | None:
        """The norms of the rows, in a shape that broadcasts over the rows; None if raw magnitudes are ranked."""
        return self._norms.get(info.name)

    def alpha(self, number: int, low: int, high: int) -> float:
        """The alpha of a pruned tensor's band between boundary `low` and the sparser `high`."""
        return float(self._alphas[low].reshape(len(self._pruned), low)[number, high])

    def band(self, number: int, needed: Needed) -> Tensor:
        """The signs in a pruned tensor's band as 1 and -1, with 0 elsewhere."""
        info = self._pruned[number]
        band = np.zeros(info.elements, np.float32)
        for boundary in range(needed.values, needed.signs):
            patterns, negative = self._signs[boundary][number]
            band[members_of(patterns, self._flats[number].size, info.elements)] = 1.0 - 2.0 * negative
        return torch.from_numpy(band).reshape(info.shape)

    def _read_base(self, streams: StreamReader) -> None:
        joined = {width: Cursor(_joined([streams.next() for _ in range(width)])) for width in WIDTHS}
        for info in self.head.of_role("plain"):
            stored = DTYPES[info.stored]
            flat = torch.from_numpy(joined[stored.itemsize].take(info.elements * stored.itemsize))
            if stored is torch.bool and bool((flat > 1).any()):
                raise PofFileError(f"tensor {info.name!r} holds a bool that is neither 0 nor 1")
            self.plain[info.name] = flat.view(stored).reshape(info.shape).to(DTYPES[info.dtype])
        self.norm_layers = statistics_stream.norms_of({name: value.shape for name, value in self.plain.items()})
        norms, scales = Cursor(streams.next()), Cursor(streams.next())
        for info in self._pruned:
            if self.head.magnitudes == "unit":
                self._norms[info.name] = _floats(norms, info.layout.norms_shape(info.shape), f"a norm of {info.name!r}")
            if self.head.values == "int8":
                self._scales[info.name] = _floats(scales, (info.shape[0],), f"a scale of {info.name!r}")
        for cursor in (*joined.values(), norms, scales):
            cursor.end()

    def _read_values(self, streams: StreamReader, *, rest: bool) -> None:
        masks = MaskReader(streams)
        magnitudes = MagnitudeReader(streams, len(self._flats), with_signs=True)
        for flat in self._flats:
            patterns = masks.next(flat.taken, flat.size)
            magnitudes.place(flat, patterns)
            flat.taken = flat.taken | patterns
        masks.end()
        magnitudes.end()
        if rest:
            self._read_negative_zeros(streams)

    def _read_negative_zeros(self, streams: StreamReader) -> None:
        flags, masks = _sized(streams.next(), len(self._flats)), MaskReader(streams)
        for flag, flat in zip(flags, self._flats, strict=True):
            if flag:
                zeros = members_of(masks.next(flat.taken, flat.size), flat.size, flat.count)
                flat.integers[zeros] = 1 << flat.sign_bit
        masks.end()

    def _read_signs(self, streams: StreamReader, boundary: int) -> None:
        masks, signs = MaskReader(streams), Cursor(streams.next())
        found = []
        for flat in self._flats:
            patterns = masks.next(flat.taken, flat.size)
            found.append((patterns, read_signs(signs, count_of(patterns, flat.size))))
            flat.taken = flat.taken | patterns
        masks.end()
        signs.end()
        self._signs[boundary] = found
        alphas = _sized(streams.next(), 4 * boundary * len(self._flats)).copy().view(np.float32)
        if not np.isfinite(alphas).all():
            raise PofFileError("the alpha of a band is not finite")
        self._alphas[boundary] = alphas

    def _read_magnitudes(self, streams: StreamReader, boundary: int) -> None:
        magnitudes = MagnitudeReader(streams, len(self._flats), with_signs=False)
        for flat, (patterns, negative) in zip(self._flats, self._signs[boundary], strict=True):
            magnitudes.place(flat, patterns, negative)
        magnitudes.end()


def _empty(infos: Sequence[TensorInfo], values: str) -> list[Flat]:
    """The pruned tensors, all zero, with nothing placed yet."""
    kinds = [stored_kind(DTYPES[info.dtype], values) for info in infos]
    held = [held_as(kind, DTYPES[info.dtype]) for info, kind in zip(infos, kinds, strict=True)]
    sizes = [info.elements * np.dtype(integer).itemsize for info, integer in zip(infos, held, strict=True)]
    flats = []
    for info, kind, integer, zeros in zip(infos, kinds, held, fresh_parts(sizes), strict=True):
        size = group_size(info.shape)
        taken, most = taken_beyond(info.elements, size), largest_symbol(kind, DTYPES[info.dtype])
        flats.append(Flat(size, info.shape[0], kind, zeros.view(integer), taken, most))
    return flats


def _joined(planes: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """The bytes of numbers, joined from one stream per byte of a number."""
    if len({len(plane) for plane in planes}) > 1:
        raise PofFileError("the streams of the bytes of a number differ in length")
    return np.stack(planes, axis=1).reshape(-1)


def _floats(cursor: Cursor, shape: tuple[int, ...], what: str) -> Tensor:
    found = cursor.take(4 * math.prod(shape)).copy().view(np.float32)
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise PofFileError(f"{what} is negative or not finite")
    return torch.from_numpy(found).reshape(shape)


def _sized(data: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    if len(data) != size:
        raise PofFileError("the length of a stream does not fit its tensors")
    return data
