"""Small networks with every kind of layer, and what an Elastic makes of them, for the tests of the .pof file."""

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

STAGES = (0.9, 0.7, 0.3)
ENDS: list[tuple[float, float | None]] = [
    # Stages, between them, beyond them; bands between stages, and others.
    *((sparsity, None) for sparsity in (0.9, 0.7, 0.3, 0.95, 0.8, 0.5, 0.1, 0.001)),
    *((0.9, 0.7), (0.9, 0.3), (0.7, 0.3), (0.9, 0.0), (0.8, 0.5), (0.7, 0.1), (0.95, 0.9), (0.8, 0.3), (0.5, 0.5)),
]
"""(sparsity, recover_from)."""


class Kinds(nn.Module):
    """Every kind of layer; `stem` is not pruned, and `again` is `head` under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.kernel = nn.Conv2d(4, 8, 3, bias=False)
        self.point = nn.Conv2d(8, 12, 1)
        self.wide = nn.Conv2d(3, 2, 5)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.up = nn.ConvTranspose2d(8, 6, 2, groups=2)
        self.up_kernel = nn.ConvTranspose2d(4, 6, 3)
        self.line = nn.Conv1d(5, 7, 3)
        self.head = nn.Linear(13, 11)
        self.again = nn.Linear(13, 11)
        self.again.weight = self.head.weight


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """`model` with random weights, ties and zeros of both signs among them, and statistics that differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.state_dict().values():
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator)
            if value.dim() < 2:
                value.copy_(noise.abs() + 0.1)
                continue
            kind = torch.rand(value.shape, generator=generator)
            noise = torch.where(kind < 0.2, (noise * 4).round() / 4, noise)
            noise = torch.where(kind > 0.97, torch.zeros_like(noise).copysign(noise), noise)
            value.copy_(noise)
    return model


def bits(tensors: nn.Module | Mapping[str, Tensor]) -> dict[str, bytes]:
    """Everything that a model or a state_dict holds, byte by byte, with types and shapes."""
    if isinstance(tensors, nn.Module):
        tensors = tensors.state_dict()
    return {
        name: f"{value.dtype} {tuple(value.shape)} ".encode()
        + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in tensors.items()
    }


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


def loaded_dense(path: Path | str, like: nn.Module) -> nn.Module:
    """A copy of `like` with what the file holds."""
    model = copy.deepcopy(like)
    pof.load(path, into=model)
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
