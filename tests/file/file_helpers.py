"""Files compared with what an Elastic makes of a model, and files taken apart, for the tests of the .pof file."""

import copy
import json
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import pof
from pof.file.header import HEADER, HEADER_BYTES, MAGIC
from pof.file.streams import DEFLATED, STORED, StreamReader, deflate, varint

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
STAGES = (0.9, 0.7, 0.3)
ENDS: list[tuple[float, float | None]] = [
    # Stages, between them, beyond them; bands between stages, and others.
    *((sparsity, None) for sparsity in (0.9, 0.7, 0.3, 0.95, 0.8, 0.5, 0.1, 0.001)),
    *((0.9, 0.7), (0.9, 0.3), (0.7, 0.3), (0.9, 0.0), (0.8, 0.5), (0.7, 0.1), (0.95, 0.9), (0.8, 0.3), (0.5, 0.5)),
]
"""(sparsity, recover_from)."""


def assert_same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].dtype is value.dtype, name
        assert found[name].shape == value.shape, name
        assert torch.equal(found[name].nan_to_num(), value.nan_to_num()), name


def at_states(
    model: nn.Module, ends: list[tuple[float, float | None]], **settings: Any
) -> Iterator[tuple[tuple[float, float | None], dict[str, Tensor]]]:
    """What an Elastic makes of a copy of `model`, at each of `ends`."""
    elastic = pof.Elastic(live := copy.deepcopy(model), **settings)
    for sparsity, recover_from in ends:
        with elastic.at(sparsity, recover_from):
            yield (sparsity, recover_from), {name: value.clone() for name, value in live.state_dict().items()}


def assert_like_elastic(
    file: Path, model: nn.Module, ends: list[tuple[float, float | None]] = ENDS, **chosen: Any
) -> None:
    """`model` has the weights of the file, dense; at all other states the two must agree."""
    opened = pof.open(file)
    for (sparsity, recover_from), expected in at_states(model, ends, **chosen):
        assert_same(opened.state_dict(sparsity, recover_from), expected)


def loaded_dense(path: Path | str, like: nn.Module) -> nn.Module:
    """A copy of `like` with what the file holds."""
    model = copy.deepcopy(like)
    pof.load(path, into=model)
    return model


def zeroed(model: nn.Module) -> nn.Module:
    """A copy of `model` that holds nothing but zeros."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for value in model.state_dict().values():
            value.zero_()
    return model


# --- files taken apart and put together again, with checksums that are right ---------------------------------------


def parts_of(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The head, and the chunks."""
    (length,) = struct.unpack_from("<I", data, 12)
    head = json.loads(zlib.decompress(data[HEADER_BYTES : HEADER_BYTES + length], -15))
    chunks, position = [], HEADER_BYTES + length
    for _, _, size, _ in head["chunks"]:
        chunks.append(data[position : position + size])
        position += size
    assert position == len(data)
    return head, chunks


def with_parts(head: Any, chunks: list[bytes], *, keep_table: bool = False) -> bytes:
    """A file of these parts, with lengths and checksums to match; `keep_table` leaves those of the chunks."""
    if not keep_table:
        table = [
            [kind, at, len(chunk), zlib.crc32(chunk)]
            for (kind, at, _, _), chunk in zip(head["chunks"], chunks, strict=True)
        ]
        head = {**head, "chunks": table}
    return with_raw_head(json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()) + b"".join(chunks)


def with_raw_head(raw: bytes, claimed: int | None = None) -> bytes:
    """Header and head, with checksums that are right."""
    packed = deflate([raw])
    front = HEADER.pack(MAGIC, 1, 0, len(packed), len(raw) if claimed is None else claimed, zlib.crc32(packed))
    return front + struct.pack("<I", zlib.crc32(front)) + packed


def streams_of(chunk: bytes) -> list[bytes]:
    """The streams of a chunk, decoded."""
    reader, found = StreamReader(chunk), []
    for _ in range(chunk[0]):
        found.append(reader.next().tobytes())
    reader.end()
    return found


def with_streams(streams: list[bytes]) -> bytes:
    """The inverse of `streams_of`."""
    table, data = [varint(len(streams))], []
    for raw in streams:
        packed = deflate([raw])
        method = DEFLATED if len(packed) < len(raw) else STORED
        data.append(packed if method == DEFLATED else raw)
        table.append(varint(len(raw)) + varint(len(data[-1])) + bytes([method]))
    return b"".join(table + data)


def changed_head(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with `change` made to its head."""
    head, chunks = parts_of(data)
    change(head)
    return with_parts(head, chunks, keep_table=True)


def arithmetic(shape: tuple[int, ...], seed: int) -> Tensor:
    """Weights by plain arithmetic: the same on every machine and in every version of torch."""
    count = int(np.prod(shape, dtype=np.int64))
    numbers = (np.arange(1, count + 1, dtype=np.int64) * 7919 + seed * 104729) % 2039 - 1019
    cubes = (numbers.astype(np.float64) / 1024) ** 3
    return torch.from_numpy(cubes.astype(np.float32)).reshape(shape)
