"""The header and the head of a file: its table of contents, with checksums. See SPEC.md."""

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from pof.errors import PofError, PofFileError, first_line
from pof.file.chunk_layout import Chunk, chunks_of
from pof.file.number_types import ITEM_SIZES
from pof.file.streams import DEFLATE_MOST, deflate, inflate
from pof.ranking.row_layout import PLAIN, RowLayout
from pof.ranking.sparsity import check_sparsity

MAGIC = b"\x93POF\r\n\x1a\n"
VERSION = 1
HEADER = struct.Struct("<8sHHIII")
HEADER_BYTES = HEADER.size + 4
MOST_HEAD = 1 << 23
MOST_ELEMENTS = 1 << 40
MOST_DIMENSIONS = 64
MOST_MESSAGE = 150
StoredValues = Literal["exact", "fp16", "int8"]
CHOICES = {"values": ("exact", "fp16", "int8"), "scope": ("layer", "global"), "magnitudes": ("raw", "unit")}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of the file."""

    role: str
    """Either "plain", "pruned" or "alias"."""
    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    stored: str = ""
    """The type in which the file stores a plain tensor."""
    layout: RowLayout = PLAIN
    """Where the rows of a pruned tensor lie."""
    sparsity: float | None = None
    target: str = ""
    """The name of the tensor that an alias stands for."""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class Head:
    """The table of contents of a file."""

    values: str
    scope: str
    magnitudes: str
    stages: tuple[float, ...]
    whole: bool
    metadata: dict[str, str]
    tensors: tuple[TensorInfo, ...]
    chunks: tuple[tuple[Chunk, int, int], ...] = ()
    """Each chunk with its length and its checksum."""

    def of_role(self, role: str) -> list[TensorInfo]:
        """The tensors of one role."""
        return [tensor for tensor in self.tensors if tensor.role == role]


def write_head(head: Head) -> bytes:
    """The header and the head as bytes."""
    table = {
        **{name: getattr(head, name) for name in ("values", "scope", "magnitudes", "stages", "whole", "metadata")},
        "tensors": [_as_list(tensor) for tensor in head.tensors],
        "chunks": [[*chunk, length, checksum] for chunk, length, checksum in head.chunks],
    }
    try:
        raw = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise PofError(f"a name or a metadata string cannot be written as UTF-8: {first_line(error)}") from None
    if len(raw) > MOST_HEAD:
        raise PofError(f"names and metadata take {len(raw)} bytes, more than {MOST_HEAD}: keep less metadata")
    packed = deflate([raw])
    front = HEADER.pack(MAGIC, VERSION, 0, len(packed), len(raw), zlib.crc32(packed))
    return front + struct.pack("<I", zlib.crc32(front)) + packed


def head_length(header: bytes) -> int:
    """The number of bytes of the head, which follows the header; an error if this is not a .pof header."""
    if header[: len(MAGIC)] != MAGIC[: len(header)] or not header:
        raise PofFileError("this is not a .pof file: it does not begin with the magic bytes")
    if len(header) < HEADER_BYTES:
        raise PofFileError("the file is cut off in its header")
    _, version, zero, length, raw, _ = HEADER.unpack_from(header)
    if zlib.crc32(header[: HEADER.size]) != struct.unpack_from("<I", header, HEADER.size)[0]:
        raise PofFileError("the header is damaged: its checksum is wrong")
    if version != VERSION or zero != 0:
        raise PofFileError(f"the file has version {version}, and this pof reads {VERSION}: install a newer pof")
    if max(length, raw) > MOST_HEAD:
        raise PofFileError(f"the head claims {max(length, raw)} bytes, more than {MOST_HEAD}")
    found: int = length
    return found


def read_head(header: bytes, packed: bytes) -> Head:
    """Check the head and return it."""
    length = head_length(header)
    _, _, _, _, raw, checksum = HEADER.unpack_from(header)
    if len(packed) < length:
        raise PofFileError("the file is cut off in its head")
    if zlib.crc32(packed) != checksum:
        raise PofFileError("the head is damaged: its checksum is wrong")
    try:
        head = _parse(json.loads(inflate(packed, raw).tobytes()))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        # The message may quote a value that is a megabyte long.
        if isinstance(error, PofFileError):
            raise PofFileError(first_line(error, MOST_MESSAGE)) from None
        raise PofFileError(f"the head is damaged ({type(error).__name__}: {first_line(error, MOST_MESSAGE)})") from None
    check_sizes(head, sum(length for _, length, _ in head.chunks))
    return head


def check_stages(stages: Sequence[float]) -> tuple[float, ...]:
    """Check the boundaries and return them, largest first."""
    if not isinstance(stages, Iterable) or isinstance(stages, str):
        raise PofError(f"stages={stages!r} must be a sequence of sparsities, such as (0.9, 0.7, 0.3)")
    found = tuple(check_sparsity(stage, "stages") for stage in stages)
    if any(stage == 0.0 for stage in found) or sorted(set(found), reverse=True) != list(found):
        raise PofError(f"stages={stages!r} must lie in (0, 1), in falling order, such as (0.9, 0.7, 0.3)")
    return found


def _as_list(tensor: TensorInfo) -> list[Any]:
    if tensor.role == "alias":
        return [tensor.role, tensor.name, tensor.target]
    if tensor.role == "plain":
        return [tensor.role, tensor.name, tensor.dtype, tensor.shape, tensor.stored]
    return [tensor.role, tensor.name, tensor.dtype, tensor.shape, tensor.layout.stored(), tensor.sparsity]


def _parse(table: dict[str, Any]) -> Head:
    for key, known in CHOICES.items():
        if table[key] not in known:
            raise PofFileError(f"the head says {key}={table[key]!r}; known are {', '.join(known)}")
    stages = check_stages(table["stages"])
    tensors = tuple(_tensor(item) for item in table["tensors"])
    names = [tensor.name for tensor in tensors]
    if len(set(names)) != len(names):
        raise PofFileError("the head names a tensor twice")
    real = {tensor.name for tensor in tensors if tensor.role != "alias"}
    if any(tensor.target not in real for tensor in tensors if tensor.role == "alias"):
        raise PofFileError("the head has an alias of a tensor that is not there")
    chunks = tuple((Chunk(str(kind), int(at)), int(length), int(crc)) for kind, at, length, crc in table["chunks"])
    if [chunk for chunk, _, _ in chunks] != chunks_of(stages) or any(length < 0 for _, length, _ in chunks):
        raise PofFileError("the chunks in the head do not match its stages")
    metadata = {str(key): str(value) for key, value in table["metadata"].items()}
    for text in (*names, *(part for pair in metadata.items() for part in pair)):
        text.encode()  # raises an error for a lone surrogate, which could not be shown
    return Head(
        table["values"], table["scope"], table["magnitudes"], stages, bool(table["whole"]), metadata, tensors, chunks
    )


def _tensor(item: list[Any]) -> TensorInfo:
    role, name = item[0], str(item[1])
    if role == "alias":
        return TensorInfo("alias", name, target=str(item[2]))
    shape = tuple(item[3])
    sizes_are_fine = len(shape) <= MOST_DIMENSIONS and all(type(size) is int and size >= 0 for size in shape)
    if not sizes_are_fine or prod(max(size, 1) for size in shape) > MOST_ELEMENTS:
        raise PofFileError(f"tensor {name!r} claims the shape {shape}")
    if item[2] not in ITEM_SIZES:
        raise PofFileError(f"tensor {name!r} has the unknown type {item[2]!r}")
    if role == "plain" and (item[4] == item[2] or (item[2], item[4]) == ("float32", "float16")):
        return TensorInfo("plain", name, item[2], shape, stored=item[4])
    if role != "pruned" or item[2] not in ("float32", "float16", "bfloat16") or not shape or 0 in shape:
        raise PofFileError(f"tensor {name!r} has the unknown role {role!r} or a type that cannot be pruned")
    try:
        layout = RowLayout.from_stored(item[4], shape)
    except PofError as error:
        raise PofFileError(f"tensor {name!r}: {error}") from None
    return TensorInfo("pruned", name, item[2], shape, layout=layout, sparsity=_fixed(item[5]))


def _fixed(value: Any) -> float | None:
    return None if value is None else check_sparsity(value, "a fixed sparsity")


def check_sizes(head: Head, chunk_bytes: int) -> None:
    """Refuse tensors that `chunk_bytes` cannot hold, before anything is allocated."""
    pruned = sum(tensor.elements for tensor in head.of_role("pruned"))
    if pruned > 9 * DEFLATE_MOST * chunk_bytes + (1 << 16):
        raise PofFileError(f"the head claims {pruned} weights in {chunk_bytes} bytes")
    plain = sum(tensor.elements * ITEM_SIZES[tensor.stored] for tensor in head.of_role("plain"))
    if plain > DEFLATE_MOST * chunk_bytes + (1 << 16):
        raise PofFileError(f"the head claims tensors of {plain} bytes in {chunk_bytes} bytes")
