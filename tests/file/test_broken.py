"""Broken files: exactly the right tensors or a PofFileError; never another error, much memory, or half a load."""

import copy
import json
import math
import random
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from file_helpers import (
    Kinds,
    bits,
    changed_head,
    parts_of,
    randomised,
    streams_of,
    with_parts,
    with_raw_head,
    with_streams,
)
from torch import nn

import pof
from pof.file import header
from pof.file.streams import varint

MAGIC = header.MAGIC
STATES = [(0.0, None), (0.9, None), (0.8, None), (0.7, 0.3), (0.5, 0.2)]


class Small(nn.Module):
    """A file of this has less than two kilobytes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(2)
        self.kernel = nn.Conv2d(2, 4, 3, bias=False)
        self.fc = nn.Linear(7, 5)
        self.register_buffer("flag", torch.tensor([True, False]))


def small() -> nn.Module:
    return randomised(Small())


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


def saved(folder: Path, model: nn.Module, **chosen: Any) -> bytes:
    file = folder / "whole.pof"
    pof.save(model, file, **chosen)
    return file.read_bytes()


def shapes(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {name: (value.dtype, tuple(value.shape)) for name, value in tensors.items()}


class BytesSource:
    """A file in memory: thousands of them take no time."""

    name = "broken.pof"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, start: int, length: int) -> bytes:
        assert length <= max(len(self._data), 1 << 26), "a local file would be asked for that much memory"
        return self._data[start : start + length]

    def size(self) -> int:
        return len(self._data)


def read(data: bytes, states: list[Any], **how: Any) -> list[dict[str, torch.Tensor] | None]:
    """The tensors at each state, or None where they are refused by a PofFileError of one line."""
    found: list[dict[str, torch.Tensor] | None] = []
    try:
        with mock.patch("pof.file.pof_file.open_source", return_value=BytesSource(data)):
            opened = pof.open("broken.pof", **how)
    except pof.PofFileError as error:
        refused(error)
        return [None] * len(states)
    for state in states:
        try:
            found.append(opened.state_dict(*(opened.densest if state is None else state)))
        except pof.PofFileError as error:
            refused(error)
            found.append(None)
    return found


def refused(error: pof.PofFileError) -> None:
    text = str(error)
    if "broken.pof" not in text or "\n" in text or len(text) > 600:
        raise AssertionError(f"not a message for a user: {text!r}")


# --- what checksums and lengths see -------------------------------------------------------------------------------


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    data = saved(tmp_path, small())
    assert len(data) < 2500
    for end in range(len(data)):
        assert read(data[:end], [(0.9, None)]) == [None]


def test_a_file_cut_off_anywhere_gives_the_stages_that_are_there(tmp_path: Path) -> None:
    model = small()
    data = saved(tmp_path, model)
    opened = pof.open(tmp_path / "whole.pof")
    ends = [(stage.cumulative, stage.state) for stage in opened.stages if stage.state is not None]
    right = {state: bits(opened.state_dict(*state)) for _, state in ends}
    for end in range(len(data) + 1):
        there = [state for cumulative, state in ends if cumulative <= end]
        (found,) = read(data[:end], [None], partial=True)
        if not there:
            assert found is None
        else:
            assert found is not None
            assert bits(found) == right[min(there)]


@pytest.mark.parametrize("partial", [False, True])
def test_a_bit_that_flips_anywhere_is_noticed(tmp_path: Path, partial: bool) -> None:
    data = saved(tmp_path, small(), metadata={"a": "b"})
    chance = random.Random(0)
    for place in range(len(data)):
        worse = bytearray(data)
        worse[place] ^= 1 << chance.randrange(8)
        assert read(bytes(worse), [(0.0, None)], partial=partial) == [None], place


def test_a_bit_that_flips_harms_only_the_states_that_need_it(tmp_path: Path) -> None:
    data = saved(tmp_path, small())
    opened = pof.open(tmp_path / "whole.pof")
    right = {state: bits(opened.state_dict(*state)) for state in STATES}
    (needed,) = (stage.cumulative for stage in opened.stages if stage.state == (0.7, 0.3))
    chance = random.Random(1)
    for place in range(0, len(data), 7):
        worse = bytearray(data)
        worse[place] ^= 1 << chance.randrange(8)
        for state, found in zip(STATES, read(bytes(worse), STATES), strict=True):
            assert found is None or bits(found) == right[state]
            if place >= needed and state in ((0.9, None), (0.8, None)):
                assert found is not None


@pytest.mark.parametrize("partial", [False, True])
def test_random_bytes_are_no_file(tmp_path: Path, partial: bool) -> None:
    chance = random.Random(2)
    for start in (b"", MAGIC, MAGIC + b"\x01\x00\x00\x00", MAGIC[:4], b"PK\x03\x04", b"\x89PNG\r\n\x1a\n"):
        for size in (0, 1, 7, 20, 28, 100, 3000):
            assert read(start + chance.randbytes(size), [(0.0, None)], partial=partial) == [None]


def test_what_is_no_file_of_ours_is_called_so(tmp_path: Path) -> None:
    for data in (b"", b"\x80\x02}q\x00.", bytes(5000)):
        (file := tmp_path / "other.pt").write_bytes(data)
        with pytest.raises(pof.PofFileError, match=r"not a \.pof file"):
            pof.open(file)
    with pytest.raises(pof.PofFileError, match=r"cannot read .*missing\.pof.*No such file"):
        pof.open(tmp_path / "missing.pof")
    with pytest.raises(pof.PofFileError, match="cannot read"):
        pof.open(tmp_path)


@pytest.mark.parametrize("partial", [False, True])
def test_bytes_too_many_are_refused(tmp_path: Path, partial: bool) -> None:
    data = saved(tmp_path, small())
    for more in (b"\0", b"x" * 1000, data):
        assert read(data + more, [(0.9, None)], partial=partial) == [None]


def test_another_version_asks_for_a_newer_pof(tmp_path: Path) -> None:
    data = saved(tmp_path, small())
    front = data[:8] + struct.pack("<H", 2) + data[10:24]
    (file := tmp_path / "new.pof").write_bytes(front + struct.pack("<I", zlib.crc32(front)) + data[28:])
    with pytest.raises(pof.PofFileError, match=r"version 2.*newer pof"):
        pof.open(file)


# --- deeper than checksums ----------------------------------------------------------------------------------------


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
        expected = shapes(pof.open(_put(tmp_path, data)).state_dict())
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
        expected = shapes(pof.open(_put(tmp_path, data)).state_dict())
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


def _put(folder: Path, data: bytes) -> Path:
    (file := folder / "put.pof").write_bytes(data)
    return file


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


# --- claims -------------------------------------------------------------------------------------------------------


def assert_refused_cheaply(data: bytes, folder: Path, **how: Any) -> None:
    file = _put(folder, data)
    begun = time.monotonic()
    tracemalloc.start()
    try:
        for state in STATES:
            with pytest.raises(pof.PofFileError):
                pof.open(file, **how).state_dict(*state)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20e6
    assert time.monotonic() - begun < 5


@pytest.mark.usefixtures("_either_core")
@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("shape", [[50_000, 50_000], [10_000_000_000], [100_000, 100, 3, 3], [2**20, 2**20]])
@pytest.mark.parametrize("role", ["pruned", "plain"])
def test_a_kilobyte_that_claims_gigabytes_is_refused_at_once(
    tmp_path: Path, partial: bool, shape: list[int], role: str
) -> None:
    data = saved(tmp_path, nn.Linear(8, 8, bias=False))
    head, chunks = parts_of(data)
    rest = [None, None] if role == "pruned" else ["float32"]
    head["tensors"] = [*head["tensors"], [role, "huge", "float32", shape, *rest]]
    assert len(with_parts(head, chunks)) < 1600
    assert_refused_cheaply(with_parts(head, chunks), tmp_path, partial=partial)
    # The chunks may claim to be large enough to hold them: not all of them, or nothing at all, is there.
    for first in range(len(chunks)):
        claimed = [[k, b, n if i < first else 10 << 30, c] for i, (k, b, n, c) in enumerate(head["chunks"])]
        whole = with_parts({**head, "chunks": claimed}, chunks, keep_table=True)
        assert_refused_cheaply(whole, tmp_path, partial=partial)


@pytest.mark.usefixtures("_either_core")
@pytest.mark.parametrize("size", [10 << 30, 1 << 62, (1 << 63) - 1, 1 << 70])
def test_streams_that_claim_gigabytes_are_refused_at_once(tmp_path: Path, size: int) -> None:
    head, chunks = parts_of(saved(tmp_path, nn.Linear(8, 8, bias=False)))
    streams = chunks[0][0]
    many = [
        varint(streams) + (varint(size) + varint(2) + b"\x01") * streams + b"\x03\x00" * streams,
        varint(streams) + (varint(2) + varint(size) + b"\x01") * streams + b"\x03\x00" * streams,
        varint(streams) + (varint(size) + varint(size) + b"\x00") * streams,
        varint(size) + chunks[0][1:],
    ]
    for chunk in many:
        assert_refused_cheaply(with_parts(head, [chunk, *chunks[1:]]), tmp_path)


@pytest.mark.parametrize("partial", [False, True])
def test_a_head_that_claims_gigabytes_is_refused_at_once(tmp_path: Path, partial: bool) -> None:
    for length, raw in ((4 << 30) - 1, 100), (100, (4 << 30) - 1), ((4 << 30) - 1, (4 << 30) - 1), (100, 64 << 20):
        front = header.HEADER.pack(MAGIC, 1, 0, length, raw, 0)
        data = front + struct.pack("<I", zlib.crc32(front)) + bytes(900)
        assert_refused_cheaply(data, tmp_path, partial=partial)
    assert_refused_cheaply(with_raw_head(b"{}", claimed=64 << 20), tmp_path, partial=partial)


def test_negative_zeros_that_are_not_there_are_refused(tmp_path: Path) -> None:
    head, chunks = parts_of(saved(tmp_path, nn.Linear(8, 8, bias=False)))
    streams = streams_of(chunks[-1])
    flags = len(streams) - 2 - 26
    assert streams[flags] == b"\0"
    with torch.no_grad():
        model = nn.Linear(8, 8, bias=False)
        model.weight[0, :3] = -0.0
    assert streams_of(parts_of(saved(tmp_path, model))[1][-1])[flags] == b"\1"
    for claim in (b"\1", b"", b"\0\0"):
        worse = [*streams[:flags], claim, *streams[flags + 1 :]]
        if claim == b"\1":
            worse[flags + 1] = b"\1\1"
        assert read(with_parts(head, [*chunks[:-1], with_streams(worse)]), [(0.0, None)]) == [None]


# --- all or nothing -----------------------------------------------------------------------------------------------


def test_the_model_is_untouched_by_any_error(tmp_path: Path) -> None:
    data = saved(tmp_path, small())
    model = randomised(Small(), seed=9)
    before = bits(model)
    late = bytearray(data)
    late[-1] ^= 1
    head, chunks = parts_of(data)
    no_numbers = streams_of(chunks[1])
    no_numbers[26 + 1 + 26 + 2] = b"\xff" * len(no_numbers[26 + 1 + 26 + 2])
    broken = {
        "late": bytes(late),
        "cut": data[:-1],
        "too long": data + b"x",
        "nothing": b"",
        "NaN": with_parts(head, [chunks[0], with_streams(no_numbers), *chunks[2:]]),
    }
    for name, worse in broken.items():
        for sparsity in (None, 0.1):
            with pytest.raises(pof.PofFileError):
                pof.load(_put(tmp_path, worse), into=model, sparsity=sparsity if name != "NaN" else 0.95)
            assert bits(model) == before, name
    assert pof.load(_put(tmp_path, bytes(late)), into=model, sparsity=0.9).sparsity == 0.9
    assert bits(model) != before


def test_a_model_that_does_not_fit_is_untouched(tmp_path: Path) -> None:
    file = _put(tmp_path, saved(tmp_path, small()))
    wider, more, fewer, meta, lazy = Small(), Small(), Small(), Small().to("meta"), Small()
    wider.fc = nn.Linear(8, 5)
    more.extra = nn.Linear(2, 2)
    del fewer.fc
    lazy.fc = nn.LazyLinear(5)
    other_dims = Small()
    other_dims.flag = torch.tensor([[True, False]])
    for model, text in (
        (wider, r"'fc.weight' has shape \(5, 7\) instead of \(5, 8\)"),
        (more, "lacks 'extra.bias' and 1 more"),
        (fewer, "has no place for 'fc.bias' and 1 more"),
        (meta, "meta device"),
        (lazy, "lazy"),
        (other_dims, "'flag' has shape"),
        (Kinds(), "does not fit the model"),
    ):
        before = {n: v for n, v in model.state_dict().items() if not nn.parameter.is_lazy(v)}
        copies = bits(before) if model is not meta else None
        with pytest.raises(pof.PofFileError, match=text):
            pof.load(file, into=model)
        assert copies is None or bits(before) == copies


@pytest.mark.parametrize(
    "arguments", [{"sparsity": 1.0}, {"sparsity": "0.9"}, {"recover_from": 0.3}, {"sparsity": math.nan}]
)
def test_states_that_do_not_exist_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    file = _put(tmp_path, saved(tmp_path, small()))
    model = randomised(Small(), seed=9)
    before = bits(model)
    with pytest.raises(pof.PofError):
        pof.load(file, into=model, **arguments)
    with pytest.raises(pof.PofError, match="swap them"):
        pof.load(file, into=model, sparsity=0.3, recover_from=0.7)
    assert bits(model) == before


def test_only_modules_can_be_loaded_into(tmp_path: Path) -> None:
    file = _put(tmp_path, saved(tmp_path, small()))
    with pytest.raises(pof.PofError, match="into is a dict"):
        pof.load(file, into={})  # type: ignore[arg-type]


def nothing_but(folder: Path, file: Path) -> bool:
    return list(folder.iterdir()) == [file]


def test_a_file_stays_when_the_next_cannot_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "model.pof"
    model = small()
    pof.save(model, file)
    before = file.read_bytes()
    bad = copy.deepcopy(model)
    with torch.no_grad():
        bad.fc.weight[0, 0] = math.nan
    for number in (math.nan, math.inf, -math.inf):
        with torch.no_grad():
            bad.fc.weight[0, 0] = number
        for magnitudes in ("raw", "unit"):
            with pytest.raises(pof.PofError, match=r"'fc\.weight' holds NaN or inf"):
                pof.save(bad, file, magnitudes=magnitudes)
    for chosen in (
        {"stages": (0.3, 0.9)}, {"stages": (1.0,)}, {"stages": 0.9}, {"stages": (0.9, 0.0)}, {"values": "int4"},
        {"scope": "all"}, {"magnitudes": "?"}, {"include": "nothing"}, {"states": [0.5]}, {"sparsities": {"fc": 2}},
        {"scope": "global", "stages": (0.999,)},
    ):  # fmt: skip
        with pytest.raises(pof.PofError):
            pof.save(model, file, **chosen)
    for broken in ("pof.file.encode.write_head", "pof.file.atomic_write.os.fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(broken, lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
            with pytest.raises((pof.PofError, OSError), match="No space left"):
                pof.save(model, file)
    assert file.read_bytes() == before
    assert nothing_but(tmp_path, file)
    with pytest.raises(pof.PofError, match="cannot write"):
        pof.save(model, tmp_path / "no folder" / "model.pof")


class WithExtraState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"a": 1}


def test_what_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.pof"
    double = nn.Linear(4, 4, dtype=torch.float64)
    with pytest.raises(pof.PofError, match=r"'weight' is torch.float64.*exclude it"):
        pof.save(double, file)
    eighth = nn.Linear(4, 4)
    eighth.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))
    with pytest.raises(pof.PofError, match=r"'scale' is torch\.float8"):
        pof.save(eighth, file)
    sparse = nn.Linear(4, 4)
    sparse.register_buffer("graph", torch.eye(3).to_sparse())
    with pytest.raises(pof.PofError, match="'graph'"):
        pof.save(sparse, file)
    with pytest.raises(pof.PofError, match="'_extra_state' is a dict"):
        pof.save(WithExtraState(4, 4), file)
    with pytest.raises(pof.PofError, match="nothing to prune"):
        pof.save(nn.BatchNorm1d(4), file)
    assert not file.exists()
