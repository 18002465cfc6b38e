"""Broken files are refused, at once and cheaply: cut off, flipped bits, other bytes, claims of gigabytes."""

import random
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from broken_files import MAGIC, STATES, as_file, read, saved, small
from file_helpers import parts_of, streams_of, with_parts, with_raw_head, with_streams
from torch import nn

import pof
from pof.file import header
from pof.file.streams import varint
from tests.small_models import bits

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


# --- claims -------------------------------------------------------------------------------------------------------


def assert_refused_cheaply(data: bytes, folder: Path, **how: Any) -> None:
    file = as_file(folder, data)
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
