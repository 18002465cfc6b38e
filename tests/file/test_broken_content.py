"""Wrong bytes with right checksums: exactly the right tensors or a PofFileError, never another error."""

import copy
import json
import math
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_files import STATES, as_file, read, saved, small
from file_helpers import changed_head, parts_of, streams_of, with_parts, with_raw_head, with_streams
from torch import nn

import pof
from tests.small_models import randomised


class Filled(nn.Module):
    """All that a file can have: three types, fill, norms, aliases, statistics, a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.bn = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 40, bias=False)
        self.kernel = nn.Conv2d(4, 6, 3, bias=False)
        self.up = nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False)
        self.short = nn.Linear(9, 16, bias=False)
        self.again = nn.Linear(9, 16, bias=False)
        self.again.weight = self.short.weight
        self.shorter = nn.Linear(9, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.bn(self.stem(x))
        return found


def filled() -> nn.Module:
    model = randomised(Filled())
    pof.Elastic(model, include="*").recover(0.3, 0.7)
    model.short.half()
    model.shorter.bfloat16()
    model.again.weight = model.short.weight
    return model


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


def assert_sound(found: list[dict[str, torch.Tensor] | None], expected: dict[str, Any]) -> int:
    for tensors in found:
        assert tensors is None or shapes(tensors) == expected
    return sum(tensors is not None for tensors in found)


def files(folder: Path) -> list[bytes]:
    """Files that have, together, everything that a file can have."""
    return [
        saved(folder, small()),
        saved(folder, small(), values="int8", magnitudes="unit", stages=(0.8, 0.5)),
        saved(folder, small(), values="fp16", scope="global", stages=()),
        saved(folder, filled(), include="*", stages=(0.5,), calibrate=[torch.randn(8, 6)], states=[0.4, 0.6]),
        saved(folder, filled(), include="*", magnitudes="unit", stages=(0.9, 0.2)),
    ]


@pytest.mark.usefixtures("_either_core")
def test_chunks_of_wrong_bytes_with_right_checksums(tmp_path: Path) -> None:
    chance = random.Random(3)
    for data in files(tmp_path):
        head, chunks = parts_of(data)
        expected = shapes(pof.open(as_file(tmp_path, data)).state_dict())
        for _ in range(60):
            worse = list(chunks)
            number = chance.randrange(len(chunks))
            worse[number] = mutated(chance, chunks[number])
            assert_sound(read(with_parts(head, worse), chance.sample(STATES, 2)), expected)


@pytest.mark.usefixtures("_either_core")
def test_streams_of_wrong_bytes_with_right_lengths(tmp_path: Path) -> None:
    chance = random.Random(4)
    survived = 0
    for data in files(tmp_path):
        head, chunks = parts_of(data)
        expected = shapes(pof.open(as_file(tmp_path, data)).state_dict())
        for _ in range(50):
            worse = list(chunks)
            number = chance.randrange(len(chunks))
            streams = streams_of(chunks[number])
            if chance.random() < 0.1:
                chance.shuffle(streams)
            for place in chance.choices([i for i, raw in enumerate(streams) if raw] or [0], k=chance.randint(1, 3)):
                if chance.random() < 0.7 and streams[place]:
                    streams[place] = same_length(chance, streams[place])
                else:
                    streams[place] = mutated(chance, streams[place])
            worse[number] = with_streams(streams)
            survived += assert_sound(read(with_parts(head, worse), chance.sample(STATES, 2)), expected)
    assert survived > 30


def same_length(chance: random.Random, raw: bytes) -> bytes:
    found = bytearray(raw)
    for _ in range(chance.choice([1, 2, len(raw)])):
        found[chance.randrange(len(raw))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    return bytes(found)


def mutated(chance: random.Random, raw: bytes) -> bytes:
    found = bytearray(raw)
    for _ in range(chance.choice([1, 1, 2, 6])):
        place = chance.randrange(len(found) + 1)
        kind = chance.randrange(6)
        if kind <= 2 and place < len(found):
            found[place] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
        elif kind == 3:
            found[place:place] = chance.randbytes(chance.randint(1, 9))
        elif kind == 4:
            del found[place : place + chance.randint(1, 9)]
        else:
            found = found[:place] + found[chance.randrange(len(found) + 1) :]
    return bytes(found)


ODD = [
    *(None, True, False, -1, 0, 1, 2, 3, 255, 2**31, 2**40, 2**63, 2**70, 10**300, -(2**63), 0.5, 1.0, -0.0, 1e308),
    *(math.nan, math.inf, -math.inf, "", "x", "float32", "float16", "bool", "complex128", "unit", "plain", "alias"),
    *([], [[]], [1], [2**40, 2**40], [0, 2**62], [1] * 200, {}, {"a": 1}, [None] * 4, "\ud800", "a" * 500),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def put(table: Any, path: tuple[Any, ...], value: Any) -> None:
    *way, last = path
    for key in way:
        table = table[key]
    table[last] = value


def test_heads_of_wrong_values_with_right_checksums(tmp_path: Path) -> None:
    chance = random.Random(5)
    begun = time.monotonic()
    for data in files(tmp_path)[::2]:
        head, chunks = parts_of(data)
        for path in places(head):
            for value in chance.sample(ODD, 4):
                worse = copy.deepcopy(head)
                put(worse, path, copy.deepcopy(value))
                raw = json.dumps(worse).encode()
                whole = with_raw_head(raw) + b"".join(chunks)
                for found in read(whole, chance.sample(STATES, 1), partial=chance.random() < 0.5):
                    assert found is None or list(found) == [str(tensor[1]) for tensor in worse["tensors"]]
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"5", b"null", b'"x"', b"{}", b"\xff\xfe", b"[" * 100_000, b"9" * 5000]
)
def test_a_head_that_is_no_table(tmp_path: Path, raw: bytes) -> None:
    assert read(with_raw_head(raw), [(0.0, None)]) == [None]


def test_a_name_twice_and_aliases_of_nothing_are_refused(tmp_path: Path) -> None:
    data = saved(tmp_path, small())
    changes: list[Callable[[dict[str, Any]], object]] = [
        lambda head: head["tensors"].append(head["tensors"][0]),
        lambda head: head["tensors"].append(["alias", "new", "nowhere"]),
        lambda head: head["tensors"].extend([["alias", "a", "b"], ["alias", "b", "a"]]),
        lambda head: head["tensors"].append(["plain", "new", "float32", [3], "float32"]),
        lambda head: head["tensors"].pop(),
        lambda head: head["chunks"].reverse(),
        lambda head: head["chunks"].pop(),
        lambda head: head.update(stages=[0.9, 0.7]),
        lambda head: head.update(stages=[0.3, 0.7, 0.9]),
        lambda head: head.update(values="int4"),
    ]
    for change in changes:
        assert read(changed_head(data, change), [(0.0, None)]) == [None]


def test_a_tensor_is_never_stored_in_a_type_that_it_does_not_fit(tmp_path: Path) -> None:
    data = saved(tmp_path, small())

    def other_type(head: dict[str, Any]) -> None:
        (bias,) = (tensor for tensor in head["tensors"] if tensor[1] == "fc.bias")
        bias[2:] = ["float32", [5], "int32"]

    assert read(changed_head(data, other_type), [(0.0, None)]) == [None]


def test_a_bool_is_never_two(tmp_path: Path) -> None:
    head, chunks = parts_of(saved(tmp_path, small()))
    streams = streams_of(chunks[0])
    assert streams[0] == b"\x01\x00"
    for byte in range(256):
        streams[0] = bytes([1, byte])
        (found,) = read(with_parts(head, [with_streams(streams), *chunks[1:]]), [(0.9, None)])
        assert (found is None) == (byte > 1)
