"""Encode tensors into chunks. See SPEC.md."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pof.checks import check_choice
from pof.errors import PofError
from pof.file import statistics_stream
from pof.file.byte_source import write_bytes
from pof.file.chunk_layout import BASE, Chunk, chunks_for, chunks_of, needed_for
from pof.file.contents import Contents
from pof.file.flat_weights import Flat, write_signs
from pof.file.header import CHOICES, Head, TensorInfo, check_stages, write_head
from pof.file.magnitude_writer import MagnitudeWriter, collect
from pof.file.number_types import WIDTHS
from pof.file.position_masks import MaskWriter
from pof.file.position_patterns import group_size, patterns_of, taken_beyond
from pof.file.statistics_stream import Differences, norms_of
from pof.file.stored_statistics import differences
from pof.file.streams import StreamWriter
from pof.file.weight_integers import rounded, stored_kind, to_integers
from pof.planning.entry import Entry
from pof.ranking.ranked_weight import RankedWeight
from pof.ranking.shares import band_counts
from pof.ranking.sparsity_state import Magnitudes, Scope, State, pruned_state

Bools = NDArray[np.bool_]


class StoredWeight:
    """One pruned tensor on its way into the file."""

    def __init__(self, entry: Entry, weight: Tensor, values: str, magnitudes: Magnitudes) -> None:
        self.entry = entry
        self.stored, self.scales = rounded(entry.name, weight, values)
        self.ranked = RankedWeight(self.stored, entry.layout, magnitudes, name=entry.name)
        size = group_size(entry.shape)
        integers = to_integers(self.stored, values, self.scales)
        self.flat = Flat(
            size, entry.shape[0], stored_kind(weight.dtype, values), integers, taken_beyond(len(integers), size)
        )
        self.largest: Any = integers.dtype.type((1 << self.flat.stored.sign_bit) - 1)
        self._kept_at: tuple[int, Bools] = (-1, np.empty(0, np.bool_))
        """The last result of `kept`: each chunk asks for its boundary and the one before."""
        self.nonzero: Bools = (integers & self.largest) != 0

    def kept(self, count: int) -> Bools:
        """Which weights are kept and not zero when `count` weights are pruned."""
        if count == self._kept_at[0]:
            return self._kept_at[1]
        found: Bools = self.ranked.kept(count).reshape(-1).numpy() & self.nonzero
        self._kept_at = (count, found)
        return found

    def has_hidden(self) -> bool:
        """Whether a nonzero weight has a rank key of zero, so that ranking needs the whole file."""
        return bool(np.count_nonzero(self.nonzero & (self.ranked.keys().reshape(-1) == 0).numpy()))

    def negative_zeros(self) -> Bools:
        """Which weights are negative zeros."""
        found: Bools = ~self.nonzero & (self.flat.integers != 0)
        return found


class Encoder:
    """Turns contents into chunks."""

    def __init__(
        self, contents: Contents, values: str, stages: Sequence[float], scope: Scope, magnitudes: Magnitudes
    ) -> None:
        for name, value in (("values", values), ("scope", scope), ("magnitudes", magnitudes)):
            check_choice(value, name, CHOICES[name])
        self.stages = check_stages(stages)
        self._contents, self._values, self._scope, self._magnitudes = contents, values, scope, magnitudes
        entries = contents.entries
        self._weights = [StoredWeight(e, contents.tensors[e.name], values, magnitudes) for e in entries]
        keys = [weight.ranked.keys_across() for weight in self._weights] if scope == "global" else None
        sizes = [entry.size for entry in entries]
        states = map(pruned_state, self.stages)
        self._counts = [[zeros for zeros, _ in band_counts(sizes, keys, state)] for state in states]
        self._statistics: dict[Chunk, list[tuple[State, Differences]]] = {}
        self._plain = {n: t for n, t in contents.tensors.items() if n not in {entry.name for entry in entries}}
        self._own: dict[int, list[Bools]] = {}

    @torch.no_grad()
    def fill(self, model: nn.Module) -> None:
        """Give a copy of the model the dense weights that the file will hold."""
        parameters = model.state_dict()
        for weight in self._weights:
            parameters[weight.entry.name].copy_(weight.stored)
        for name, tensor in self._plain.items():
            parameters[name].copy_(self._plain_stored(tensor))

    def keep_statistics(self, state: State, tensors: Mapping[str, Tensor]) -> None:
        """Keep the BatchNorm statistics among `tensors`, a state_dict, for `state`."""
        norms = norms_of({name: value.shape for name, value in self._plain.items()})
        found = differences(self._plain, tensors, norms)
        chunk = chunks_for(needed_for(state, self.stages, whole=self._whole()), self.stages)[-1]
        self._statistics.setdefault(chunk, []).append((state, found))

    def write(self, path: str | Path, metadata: Mapping[str, str]) -> int:
        """Write the file, and return its size in bytes."""
        if not isinstance(metadata, Mapping):
            raise PofError(f"metadata={metadata!r} must map names to strings, such as {{'dataset': 'CIFAR-10'}}")
        chunks = [(chunk, self._chunk(chunk)) for chunk in chunks_of(self.stages)]
        head = Head(
            self._values,
            self._scope,
            self._magnitudes,
            self.stages,
            self._whole(),
            {str(key): str(value) for key, value in metadata.items()},
            tuple(self._infos()),
            tuple((chunk, len(data), zlib.crc32(data)) for chunk, data in chunks),
        )
        data = [write_head(head), *(data for _, data in chunks)]
        write_bytes(path, data)
        return sum(map(len, data))

    def _whole(self) -> bool:
        """Whether any state but the dense one needs the whole file."""
        fixed = any(entry.sparsity is not None for entry in self._contents.entries)
        return fixed or any(weight.has_hidden() for weight in self._weights)

    def _infos(self) -> Iterable[TensorInfo]:
        pruned = {weight.entry.name: weight.entry for weight in self._weights}
        for name in self._contents.names:
            if name in self._contents.aliases:
                yield TensorInfo("alias", name, target=self._contents.aliases[name])
                continue
            tensor = self._contents.tensors[name]
            dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
            if name in pruned:
                yield TensorInfo(
                    "pruned", name, dtype, shape, layout=pruned[name].layout, sparsity=pruned[name].sparsity
                )
            else:
                yield TensorInfo("plain", name, dtype, shape, stored=str(self._plain_stored(tensor).dtype)[6:])

    def _plain_stored(self, tensor: Tensor) -> Tensor:
        """A plain tensor as stored: matrices take the precision of the pruned weights, vectors keep their own."""
        if self._values == "exact" or tensor.dtype is not torch.float32 or tensor.dim() < 2:
            return tensor
        half = tensor.to(torch.float16)
        return half if bool(torch.isfinite(half).all()) else tensor

    def _chunk(self, chunk: Chunk) -> bytes:
        out = StreamWriter()
        if chunk == BASE:
            self._write_base(out)
        elif chunk.kind in ("kept", "rest"):
            own = self._members(chunk.boundary)
            patterns = self._write_positions(out, own)
            magnitudes = MagnitudeWriter(with_signs=True)
            for weight, members, pattern in zip(self._weights, own, patterns, strict=True):
                magnitudes.add(weight.flat, members, pattern)
            magnitudes.write(out)
            if chunk.kind == "rest":
                self._write_negative_zeros(out)
        elif chunk.kind == "signs":
            own = self._members(chunk.boundary)
            patterns = self._write_positions(out, own)
            parts = [collect(w.flat, m, p) > w.largest for w, m, p in zip(self._weights, own, patterns, strict=True)]
            write_signs(out, parts)
            out.add([self._alphas(chunk.boundary)])
        else:
            magnitudes = MagnitudeWriter(with_signs=False)
            for weight, members in zip(self._weights, self._members(chunk.boundary), strict=True):
                magnitudes.add(weight.flat, members, patterns_of(members, weight.flat.size))
            magnitudes.write(out)
        out.add([statistics_stream.encode(self._statistics.get(chunk, []))])
        return out.chunk()

    def _write_base(self, out: StreamWriter) -> None:
        stored = [self._plain_stored(tensor).cpu().contiguous().reshape(-1) for tensor in self._plain.values()]
        for width in WIDTHS:
            same = [flat for flat in stored if flat.element_size() == width]
            planes = [flat.view(torch.uint8).reshape(flat.numel(), width).numpy() for flat in same]
            for number in range(width):
                out.add([np.ascontiguousarray(plane[:, number]) for plane in planes])
        for rows in ([w.ranked.norms for w in self._weights], [w.scales for w in self._weights]):
            out.add([part.float().contiguous().numpy().reshape(-1).view(np.uint8) for part in rows if part is not None])

    def _members(self, boundary: int) -> list[Bools]:
        """For each pruned tensor, which weights lie between this boundary and the one before."""
        if boundary not in self._own:
            self._own[boundary] = [self._members_of(weight, i, boundary) for i, weight in enumerate(self._weights)]
        return self._own[boundary]

    def _members_of(self, weight: StoredWeight, index: int, boundary: int) -> Bools:
        last = boundary == len(self.stages)
        above = None if boundary == 0 else weight.kept(self._counts[boundary - 1][index])
        kept = weight.nonzero if last else weight.kept(self._counts[boundary][index])
        return kept if above is None else kept & ~above

    def _write_positions(self, out: StreamWriter, own: Sequence[Bools]) -> list[NDArray[np.uint16]]:
        masks, found = MaskWriter(), []
        for weight, members in zip(self._weights, own, strict=True):
            flat = weight.flat
            patterns = patterns_of(members, flat.size)
            masks.add(flat.taken, patterns, flat.size)
            flat.taken = flat.taken | patterns
            found.append(patterns)
        masks.write(out)
        return found

    def _write_negative_zeros(self, out: StreamWriter) -> None:
        masks, flags = MaskWriter(), []
        for weight in self._weights:
            zeros = weight.negative_zeros()
            flags.append(bool(zeros.any()))
            if flags[-1]:
                masks.add(weight.flat.taken, patterns_of(zeros, weight.flat.size), weight.flat.size)
        out.add([np.array(flags, np.uint8)])
        masks.write(out)

    def _alphas(self, boundary: int) -> NDArray[np.uint8]:
        found = [
            weight.ranked.alpha((self._counts[boundary][i], self._counts[above][i]))
            for i, weight in enumerate(self._weights)
            for above in range(boundary)
        ]
        return np.array(found, np.float32).view(np.uint8)
