"""Reading a `.pof` file: only the bytes that a state needs."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pof.errors import PofError, PofFileError
from pof.file import statistics
from pof.file.decode import Decoder
from pof.file.header import HEADER_BYTES, Head, check_sizes, head_length, read_head
from pof.file.layout import BASE, Chunk, Needed, chunks_for, chunks_of, needed_for, states_after
from pof.file.rebuild import weights_of
from pof.file.source import Source, open_source
from pof.planning import unwrap
from pof.states import DENSE, State, asked_state
from pof.table import text_table


@dataclass(frozen=True)
class Stage:
    """One chunk of a file, and what the file gives once it was read."""

    kind: str
    state: State | None
    """What the file gives up to here; None for the base, which is not enough."""
    bytes: int
    cumulative: int
    """Bytes of the file up to the end of this chunk, header and head too."""


class Stages(list[Stage]):
    """The stages of a file; prints as a table."""

    def __str__(self) -> str:
        rows = [(s.kind, str(s.state or "-"), s.bytes, s.cumulative) for s in self]
        return text_table(("chunk", "gives", "bytes", "up to here"), rows)

    __repr__ = __str__


def load(
    path: str | Path,
    *,
    into: nn.Module,
    sparsity: float | None = None,
    recover_from: float | None = None,
    partial: bool = False,
) -> State:
    """Load a file into `into`; return the state that it is in.

    Args:
        path: a local path, or a URL that fsspec can read by ranges; only what the state needs is read.
        into: a module with the same keys and shapes; on any error it stays as it was.
        sparsity: any, in [0, 1); by default dense.
        recover_from: fill the band from here to `sparsity` with alpha * sign(w).
        partial: take a file that is cut off; without a sparsity, the densest state that is wholly there.
    """
    if not isinstance(into, nn.Module):
        raise PofError(
            f"into is a {type(into).__name__}: pass a torch.nn.Module; pof.open(path).state_dict() gives tensors"
        )
    file = PofFile(path, partial=partial)
    state = file.densest if sparsity is None and recover_from is None else asked_state(sparsity, recover_from)
    found = file._tensors(state)
    target = unwrap(into).state_dict(keep_vars=True)
    _refuse_other(target, found, file.name)
    _refuse_unwritable(unwrap(into), target)
    with torch.no_grad():
        for name, value in found.items():
            target[name].copy_(value)
    torch.clear_autocast_cache()
    return state


def open(path: str | Path, *, partial: bool = False) -> "PofFile":
    """Open a file without loading it; arguments as in `pof.load`."""
    return PofFile(path, partial=partial)


class PofFile:
    """An open file: its stages, its metadata, and its tensors at any sparsity.

    Args:
        path: as in `pof.load`.
        partial: as in `pof.load`.
    """

    def __init__(self, path: str | Path, *, partial: bool = False) -> None:
        self._source: Source = open_source(path)
        self.name = self._source.name
        header = bytes(self._source.read(0, HEADER_BYTES))
        try:
            length = head_length(header)
            self._head = read_head(header, bytes(self._source.read(HEADER_BYTES, length)))
        except PofFileError as error:
            raise PofFileError(f"{self.name!r}: {error}") from None
        self._starts: dict[Chunk, tuple[int, int, int]] = {}
        position = HEADER_BYTES + length
        for chunk, size, checksum in self._head.chunks:
            self._starts[chunk] = (position, size, checksum)
            position += size
        self.size = position
        """Bytes of the whole file."""
        self._there = self._check_length(partial)
        self._states = states_after(self._head.stages, whole=self._head.whole)

    def __repr__(self) -> str:
        return f"PofFile({self.name!r}, {self.size} bytes, {self._head.values}, stages {self._head.stages})"

    @property
    def head(self) -> Head:
        """What is in the file."""
        return self._head

    @property
    def metadata(self) -> dict[str, str]:
        """The strings that were saved with it."""
        return dict(self._head.metadata)

    @property
    def elements(self) -> int:
        """How many numbers the tensors have in all."""
        sizes = {tensor.name: tensor.elements for tensor in self._head.tensors if not tensor.target}
        return sum(sizes[tensor.target or tensor.name] for tensor in self._head.tensors)

    @property
    def stages(self) -> Stages:
        """Every chunk that is wholly there, in order."""
        found = Stages()
        for chunk, state in zip(chunks_of(self._head.stages), self._states, strict=True):
            start, size, _ = self._starts[chunk]
            if start + size <= self._there:
                found.append(Stage(chunk.kind, state, size, start + size))
        return found

    @property
    def densest(self) -> State:
        """The densest state that is wholly there."""
        if self._head.whole and self._there < self.size:
            raise PofFileError(f"{self.name!r} is cut off, and with fixed sparsities only the whole file can be used")
        states = [stage.state for stage in self.stages if stage.state is not None]
        if not states:
            raise PofFileError(f"{self.name!r} is cut off before its first stage ends")
        return min(states, key=lambda state: (state.sparsity, state.recover_from))

    def state_dict(self, sparsity: float = 0.0, recover_from: float | None = None) -> dict[str, Tensor]:
        """The tensors at `sparsity`, under the model's own keys."""
        return self._tensors(asked_state(sparsity, recover_from))

    def bytes_for(self, sparsity: float = 0.0, recover_from: float | None = None) -> int:
        """How many bytes are read for a state, header and head too."""
        needed = needed_for(asked_state(sparsity, recover_from), self._head.stages, whole=self._head.whole)
        chunks = chunks_for(needed, self._head.stages)
        return self._starts[BASE][0] + sum(self._starts[chunk][1] for chunk in chunks)

    def kept_statistics(self) -> list[State]:
        """The states whose BatchNorm statistics are in the file; reads all of it."""
        try:
            return sorted(self._decoded(needed_for(DENSE, self._head.stages, whole=self._head.whole)).statistics)
        except PofFileError as error:
            raise PofFileError(f"{self.name!r}: {error}") from None

    def _decoded(self, needed: Needed) -> Decoder:
        head = self._head
        # Read and checked before the decoder makes room for the weights that the head claims.
        chunks = list(self._read(chunks_for(needed, head.stages)))
        check_sizes(head, sum(len(data) for _, data in chunks))
        decoder = Decoder(head)
        for chunk, data in chunks:
            decoder.read(chunk, data)
        return decoder

    def _tensors(self, state: State) -> dict[str, Tensor]:
        head = self._head
        needed = needed_for(state, head.stages, whole=head.whole)
        try:
            decoder = self._decoded(needed)
            found = {**decoder.plain, **weights_of(decoder, state, needed)}
            steps = statistics.between(decoder.statistics, state)
            if steps is not None:
                found |= statistics.apply(decoder.plain, steps, decoder.norm_layers)
        except PofFileError as error:
            raise PofFileError(f"{self.name!r}: {error}") from None
        return {tensor.name: found[tensor.target or tensor.name] for tensor in head.tensors}

    def _read(self, chunks: list[Chunk]) -> Iterable[tuple[Chunk, memoryview]]:
        """The chunks' bytes, checked; neighbours are read together."""
        runs: list[list[Chunk]] = []
        for chunk in chunks:
            start, size, _ = self._starts[chunk]
            if start + size > self._there:
                raise PofFileError(f"the file is cut off before the end of its chunk {chunk.kind!r}, which this needs")
            if runs and sum(self._starts[runs[-1][-1]][:2]) == start:
                runs[-1].append(chunk)
            else:
                runs.append([chunk])
        for run in runs:
            first = self._starts[run[0]][0]
            data = memoryview(self._source.read(first, sum(self._starts[chunk][1] for chunk in run)))
            for chunk in run:
                start, size, checksum = self._starts[chunk]
                part = data[start - first : start - first + size]
                if len(part) < size:
                    raise PofFileError(f"the file is cut off in its chunk {chunk.kind!r}")
                if zlib.crc32(part) != checksum:
                    raise PofFileError(f"the chunk {chunk.kind!r} is damaged: its checksum is wrong")
                yield chunk, part

    def _check_length(self, partial: bool) -> int:
        """How many bytes are there."""
        there = self._source.size()
        if there is None:
            return self.size
        if there > self.size:
            raise PofFileError(f"{self.name!r} has {there - self.size} bytes too many at its end")
        if there < self.size and not partial:
            raise PofFileError(
                f"{self.name!r} is cut off: {there} of {self.size} bytes; "
                "partial=True (pof unpack --partial) opens what is there"
            )
        return there


def _refuse_unwritable(into: nn.Module, target: dict[str, Tensor]) -> None:
    """Raise if a tensor of the model cannot be written to, or is only a copy of what the model works with."""
    own = {id(tensor) for tensor in (*into.parameters(), *into.buffers())}
    for name, tensor in target.items():
        if id(tensor) not in own:
            raise PofFileError(
                f"{name!r} is made by the model's own state_dict, so that writing to it changes nothing: "
                "model.load_state_dict(pof.open(path).state_dict(...))"
            )
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise PofFileError(f"{name!r} was made in inference mode, and cannot be written to: load in that mode too")
        if torch._debug_has_internal_overlap(tensor) == 1:
            raise PofFileError(f"{name!r} of the model is one number seen many times (expand): make it contiguous")


def _refuse_other(target: dict[str, Tensor], found: dict[str, Tensor], name: str) -> None:
    """Raise if the model is not one that the file fits."""
    for what, names in (("lacks", target.keys() - found.keys()), ("has no place for", found.keys() - target.keys())):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise PofFileError(f"{name!r} does not fit the model: it {what} {sorted(names)[0]!r}{more}")
    for key, value in found.items():
        if is_lazy(target[key]):
            raise PofFileError(f"{key!r} of the model has no shape yet (a lazy layer): run one batch through it first")
        if target[key].shape != value.shape:
            shapes = f"{tuple(value.shape)} instead of {tuple(target[key].shape)}"
            raise PofFileError(f"{name!r} does not fit the model: {key!r} has shape {shapes}")
        if target[key].is_meta:
            raise PofFileError(f"{key!r} of the model is on the meta device: model.to_empty(device='cpu') first")
