"""Read a `.pof` file: only the bytes that a state needs."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from pof.errors import MissingPackageError, PofFileError
from pof.file import statistics_stream
from pof.file.byte_source import ByteSource, open_source
from pof.file.chunk_layout import BASE, Chunk, chunks_for, chunks_of, needed_for, states_after
from pof.file.header import HEADER_BYTES, Head, check_sizes, head_length, read_head
from pof.file.streams import StreamReader
from pof.ranking.sparsity_state import DENSE, State, asked_state
from pof.terminal.text_table import text_table

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """One chunk of a file, and what the file gives once the chunk has been read."""

    kind: str
    state: State | None
    """The densest state that the file gives up to here; None if there is none yet, as after the base."""
    bytes: int
    cumulative: int
    """The bytes from the start of the file to the end of this chunk."""


class Stages(list[Stage]):
    """The stages of a file; they print as a table."""

    def __str__(self) -> str:
        rows = [(s.kind, str(s.state or "-"), s.bytes, s.cumulative) for s in self]
        return text_table(("chunk", "gives", "bytes", "up to here"), rows)

    __repr__ = __str__


def open(path: str | Path, *, partial: bool = False) -> "PofFile":
    """Open a file without loading it; the arguments are those of `pof.load`."""
    return PofFile(path, partial=partial)


class PofFile:
    """An open file: its stages, its metadata, and its tensors at any sparsity.

    Args:
        path: a path or URL, as in `pof.load`.
        partial: accept a file that is cut off, as in `pof.load`.
    """

    def __init__(self, path: str | Path, *, partial: bool = False) -> None:
        self._source: ByteSource = open_source(path)
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
        """The size of the whole file in bytes."""
        self._there = self._check_length(partial)
        self._states = states_after(self._head.stages, whole=self._head.whole)

    def __repr__(self) -> str:
        return f"PofFile({self.name!r}, {self.size} bytes, {self._head.values}, stages {self._head.stages})"

    @property
    def head(self) -> Head:
        """The file's table of contents."""
        return self._head

    @property
    def metadata(self) -> dict[str, str]:
        """The strings that were saved with the model, by name."""
        return dict(self._head.metadata)

    @property
    def elements(self) -> int:
        """The number of elements in all tensors together."""
        sizes = {tensor.name: tensor.elements for tensor in self._head.tensors if not tensor.target}
        return sum(sizes[tensor.target or tensor.name] for tensor in self._head.tensors)

    @property
    def stages(self) -> Stages:
        """Every chunk that is complete, in order."""
        found = Stages()
        for chunk, state in zip(chunks_of(self._head.stages), self._states, strict=True):
            start, size, _ = self._starts[chunk]
            if start + size <= self._there:
                found.append(Stage(chunk.kind, state, size, start + size))
        return found

    @property
    def densest(self) -> State:
        """The densest state that is complete."""
        if self._head.whole and self._there < self.size:
            raise PofFileError(f"{self.name!r} is cut off, but its sparse states need the whole file")
        states = [stage.state for stage in self.stages if stage.state is not None]
        if not states:
            raise PofFileError(f"{self.name!r} is cut off before its first stage ends")
        return min(states, key=lambda state: (state.sparsity, state.recover_from))

    def state_dict(self, sparsity: float = 0.0, recover_from: float | None = None) -> "dict[str, Tensor]":
        """The tensors at `sparsity`, under the model's own keys."""
        return self.tensors(asked_state(sparsity, recover_from))

    def bytes_for(self, sparsity: float = 0.0, recover_from: float | None = None) -> int:
        """How many bytes are read for a state, including the header and the head."""
        needed = needed_for(asked_state(sparsity, recover_from), self._head.stages, whole=self._head.whole)
        chunks = chunks_for(needed, self._head.stages)
        return self._starts[BASE][0] + sum(self._starts[chunk][1] for chunk in chunks)

    def kept_statistics(self) -> list[State]:
        """The states whose BatchNorm statistics are in the file; this reads the whole file."""
        shapes = {tensor.name: tensor.shape for tensor in self._head.of_role("plain")}
        channels = sum(prod(shapes[name]) for norm in statistics_stream.norms_of(shapes) for name in norm)
        everything = needed_for(DENSE, self._head.stages, whole=self._head.whole)
        found: list[State] = []
        try:
            for _, data in self._read(chunks_for(everything, self._head.stages)):
                found += statistics_stream.decode(StreamReader(data).last(), channels)
        except PofFileError as error:
            raise PofFileError(f"{self.name!r}: {error}") from None
        return sorted(found)

    def tensors(self, state: State) -> "dict[str, Tensor]":
        """The tensors in `state`, under the model's own keys."""
        return self.tensors_and_lack(state)[0]

    def tensors_and_lack(self, state: State) -> "tuple[dict[str, Tensor], bool]":
        """The tensors in `state`, and whether the file lacks the BatchNorm statistics that belong to them."""
        # Imported here, so that a file's table of contents can be read without torch.
        try:
            from pof.file.state_tensors import tensors_of
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingPackageError("the tensors of a file need torch: pip install 'pof[torch]'", "torch") from None

        needed = needed_for(state, self._head.stages, whole=self._head.whole)
        try:
            # Read and check everything before the decoder allocates the weights that the head claims.
            chunks = list(self._read(chunks_for(needed, self._head.stages)))
            check_sizes(self._head, sum(len(data) for _, data in chunks))
            return tensors_of(self._head, chunks, state, needed)
        except PofFileError as error:
            raise PofFileError(f"{self.name!r}: {error}") from None

    def _read(self, chunks: list[Chunk]) -> Iterable[tuple[Chunk, memoryview]]:
        """Read the chunks' bytes and check them; neighbours are read together."""
        runs: list[list[Chunk]] = []
        for chunk in chunks:
            start, size, _ = self._starts[chunk]
            if start + size > self._there:
                raise PofFileError(f"the file is cut off before the end of its chunk {chunk.kind!r}, which is needed")
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
        """The number of bytes that are there; an error if it is not as expected."""
        there = self._source.size()
        if there is None:
            return self.size
        if there > self.size:
            raise PofFileError(f"{self.name!r} has {there - self.size} extra bytes at its end")
        if there < self.size and not partial:
            raise PofFileError(
                f"{self.name!r} is cut off: {there} of {self.size} bytes; "
                "partial=True (pof unpack --partial) opens what is there"
            )
        return there
