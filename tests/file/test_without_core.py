"""The compiled core and numpy write the same bytes and read the same tensors; inflate is as zlib's, or refuses."""

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from file_helpers import ENDS
from torch import nn

import pof
from pof.core.library import core
from pof.errors import PofFileError
from pof.file.cursor import Cursor
from pof.file.position_masks import MaskReader, MaskWriter
from pof.file.position_patterns import count_of, members_of, patterns_of, taken_beyond
from pof.file.streams import StreamReader, StreamWriter, inflate
from tests.small_models import Kinds, bits, randomised

Switch = Callable[..., None]

pytestmark = pytest.mark.skipif(core() is None, reason="the core was not built")


def with_fill(model: nn.Module) -> nn.Module:
    pof.Elastic(model).recover(0.3, 0.7)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "kinds": lambda: randomised(Kinds()),
    "recovered": lambda: with_fill(randomised(Kinds())),
    "mixed types": lambda: nn.Sequential(
        nn.Linear(33, 9), nn.Conv2d(1, 1, 1), nn.Conv2d(5, 7, 3).half(), nn.Linear(11, 21).bfloat16()
    ),
    "larger": lambda: nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(40, 41, 3), nn.Linear(257, 129), nn.Linear(8, 1)),
    "zero": lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(9, 3)).apply(zero),
}


@torch.no_grad()
def zero(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.weight.zero_()


@pytest.mark.parametrize("values", ["exact", "fp16", "int8"])
@pytest.mark.parametrize("name", list(MODELS))
def test_files_and_tensors_are_the_same(tmp_path: Path, switch_core: Switch, name: str, values: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    magnitudes: Any = "unit" if name == "larger" else "raw"
    fast, slow = tmp_path / "fast.pof", tmp_path / "slow.pof"
    pof.save(model, fast, values=values, magnitudes=magnitudes)
    ends = [(0.0, None), *(ENDS if name == "kinds" else ENDS[::4])]
    by_core = [bits(pof.open(fast).state_dict(*end)) for end in ends]
    switch_core(on=False)
    pof.save(model, slow, values=values, magnitudes=magnitudes)
    assert slow.read_bytes() == fast.read_bytes()
    assert [bits(pof.open(fast).state_dict(*end)) for end in ends] == by_core


@pytest.mark.parametrize("size", [8, 9])
def test_positions_are_the_same(switch_core: Switch, size: int) -> None:
    generator = np.random.default_rng(size)
    for count in (*range(1, 40), 1000, 4099):
        first = generator.random(count) < generator.random()
        second = (generator.random(count) < generator.random()) & ~first
        found = []
        for on in (True, False):
            switch_core(on=on)
            taken, own = taken_beyond(count, size) | patterns_of(first, size), patterns_of(second, size)
            writer, out = MaskWriter(), StreamWriter()
            writer.add(taken_beyond(count, size), patterns_of(first, size), size)
            writer.add(taken, own, size)
            writer.write(out)
            found.append(out.chunk())
            reader = MaskReader(StreamReader(found[-1]))
            assert np.array_equal(members_of(reader.next(taken_beyond(count, size), size), size, count), first)
            assert np.array_equal(members_of(reader.next(taken, size), size, count), second)
            reader.end()
            assert count_of(own, size) == np.count_nonzero(second)
        assert found[0] == found[1]


@pytest.mark.parametrize("size", [8, 9])
def test_random_streams_of_positions_are_read_alike(switch_core: Switch, size: int) -> None:
    generator = np.random.default_rng(size)
    for _ in range(200):
        count = int(generator.integers(1, 200))
        taken = taken_beyond(count, size) | patterns_of(generator.random(count) < generator.random(), size)
        # Streams that may be too short, of bytes that no writer writes.
        streams = [generator.integers(0, 256, int(generator.integers(0, 40)), np.uint8) for _ in range(26)]
        answers: list[Any] = []
        for on in (True, False):
            switch_core(on=on)
            out = StreamWriter()
            for stream in streams:
                out.add([stream])
            reader = MaskReader(StreamReader(out.chunk()))
            try:
                own = reader.next(taken, size)
            except PofFileError:
                answers.append(None)
                continue
            assert not np.any(own & taken)
            answers.append((own.tolist(), [len(cursor.left()) for cursor in cursors_of(reader)]))
        assert answers[0] == answers[1]


def cursors_of(reader: MaskReader) -> list[Cursor]:
    for streams in reader._fast.values():
        streams.forward()
    return [*reader._streams.values(), *reader._ninth]


# --- inflate --------------------------------------------------------------------------------------------------------


def by_zlib(data: bytes, size: int) -> bytes | None:
    """What `data` holds if it is one stream of `size` bytes and nothing else."""
    unpacker = zlib.decompressobj(-15)
    try:
        found = unpacker.decompress(data)
    except zlib.error:
        return None
    return found if unpacker.eof and not unpacker.unused_data and len(found) == size else None


def by_pof(data: bytes, size: int) -> bytes | None:
    try:
        return inflate(data, size).tobytes()
    except PofFileError:
        return None


def some_bytes(chance: random.Random) -> bytes:
    size = chance.choice([0, 1, 5, 30, 300, 3000, 20000])
    kind = chance.randrange(5)
    if kind == 0:
        return chance.randbytes(size)
    if kind == 1:
        return bytes(chance.choices(range(256), weights=[1.6**-i for i in range(256)], k=size))
    if kind == 2:
        return bytes([chance.randrange(256)]) * size
    if kind == 3:
        return (chance.randbytes(chance.randrange(1, 70)) * size)[:size]
    return bytes(min(255, int(chance.expovariate(0.1))) for _ in range(size))


def some_stream(chance: random.Random, raw: bytes) -> bytes:
    packer = zlib.compressobj(chance.randrange(10), zlib.DEFLATED, -chance.randrange(9, 16), 9, chance.randrange(5))
    cut = chance.randrange(len(raw) + 1)
    flush = chance.choice([None, zlib.Z_BLOCK, zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH])
    middle = b"" if flush is None else packer.flush(flush)
    return packer.compress(raw[:cut]) + middle + packer.compress(raw[cut:]) + packer.flush()


def broken(chance: random.Random, data: bytes) -> bytes:
    found = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 5])):
        kind = chance.randrange(5)
        if kind <= 2 and found:
            # Most often near the beginning, where the codes are.
            found[chance.randrange(min(len(found), chance.choice([4, 40, 1 << 20])))] ^= 1 << chance.randrange(8)
        elif kind == 3:
            del found[chance.randrange(len(found) + 1) :]
        else:
            found += chance.randbytes(chance.randrange(1, 12))
    return bytes(found)


@pytest.mark.usefixtures("_either_core")
def test_inflate_gives_what_zlib_gives_or_refuses_as_it_does() -> None:
    chance = random.Random(0)
    agreed = 0
    for _ in range(400):
        raw = some_bytes(chance)
        data = some_stream(chance, raw)
        assert by_pof(data, len(raw)) == raw
        for size in (len(raw) + 1, max(0, len(raw) - 1), len(raw) + 300):
            assert by_pof(data, size) == by_zlib(data, size)
        for _ in range(6):
            worse = broken(chance, data)
            size = len(raw) + chance.choice([0, 0, 0, 1, -1, 8])
            if not 0 <= size <= 1032 * len(worse) + 64:
                continue
            expected = by_zlib(worse, size)
            assert by_pof(worse, size) == expected, worse.hex()
            agreed += expected is not None
    assert agreed > 100


@pytest.mark.usefixtures("_either_core")
def test_inflate_of_random_codes() -> None:
    chance = random.Random(1)
    for _ in range(6000):
        first = chance.choice([5, 5, 5, 3, 1, 7]) | chance.randrange(32) << 3
        data = bytes([first]) + chance.randbytes(chance.randrange(60))
        size = chance.randrange(64)
        assert by_pof(data, size) == by_zlib(data, size), data.hex()


class Bits:
    """Writes bits, low ones first."""

    def __init__(self) -> None:
        self.value = self.count = 0

    def put(self, value: int, count: int) -> "Bits":
        self.value |= value << self.count
        self.count += count
        return self

    def bytes(self) -> bytes:
        return self.value.to_bytes(-(-self.count // 8), "little")


def code_of(lengths: list[int]) -> dict[int, tuple[int, int]]:
    """The codewords (bits reversed, so that the first comes low) of a canonical code, by symbol."""
    found, word = {}, 0
    for length in range(1, 16):
        for symbol, own in enumerate(lengths):
            if own == length:
                found[symbol] = (int(f"{word:0{length}b}"[::-1], 2), length)
                word += 1
        word <<= 1
    return found


def block(literals: list[int], distances: list[int], symbols: list[int]) -> bytes:
    """One last block with these code lengths (each of 0 to 15, coded in 4 bits) and literals."""
    order = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15]
    of_lengths = code_of([4] * 16)
    out = Bits().put(1, 1).put(2, 2).put(len(literals) - 257, 5).put(len(distances) - 1, 5).put(15, 4)
    for symbol in order:
        out.put(4 if symbol < 16 else 0, 3)
    for length in (*literals, *distances):
        out.put(*of_lengths[length])
    code = code_of(literals)
    for symbol in symbols:
        out.put(*code[symbol])
    return out.bytes()


@pytest.mark.usefixtures("_either_core")
@pytest.mark.parametrize(
    ("lengths", "distances", "symbols", "is_good"),
    [
        ({65: 1, 256: 1}, [0], [65, 65, 256], True),
        ({65: 1, 66: 2, 256: 2}, [1], [65, 66, 256], True),
        ({65: 1, 256: 2}, [0], [65, 256], False),
        ({65: 2, 66: 2, 256: 2}, [0], [65, 256], False),
        ({65: 1, 66: 1, 256: 1}, [0], [65, 256], False),
        ({65: 1, 256: 1}, [2], [65, 256], False),
        ({65: 1, 256: 1}, [2, 2, 2], [65, 256], False),
        ({65: 1, 256: 1}, [1, 1], [65, 256], True),
        ({256: 1}, [0], [256], True),
        ({256: 2}, [0], [256], False),
        ({65: 1}, [0], [65], False),
        ({65: 15, 256: 15}, [0], [65, 256], False),
        ({**dict.fromkeys(range(14), 0), **{i: i + 1 for i in range(15)}, 256: 15}, [0], [14, 13, 0, 256], True),
    ],
)
def test_codes_with_too_few_or_too_many_words_are_refused_as_zlib_does(
    lengths: dict[int, int], distances: list[int], symbols: list[int], is_good: bool
) -> None:
    data = block([lengths.get(symbol, 0) for symbol in range(257)], distances, symbols)
    expected = bytes(symbol for symbol in symbols if symbol < 256)
    assert by_zlib(data, len(expected)) == (expected if is_good else None)
    assert by_pof(data, len(expected)) == (expected if is_good else None)


@pytest.mark.usefixtures("_either_core")
def test_a_stream_that_claims_more_than_deflate_can_do_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(PofFileError, match="claim to hold"):
        inflate(b"\x03\x00", 1 << 50)
    assert by_pof(b"\x03\x00", 0) == b""
    assert by_pof(b"", 0) is None
    assert by_pof(b"", 64) is None


@pytest.mark.usefixtures("_either_core")
def test_a_long_stream_of_zeros_is_within_the_limit() -> None:
    for size in (0, 1, 65, 1000, 258 * 1000, 10_000_000):
        packer = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
        data = packer.compress(bytes(size)) + packer.flush()
        assert by_pof(data, size) == bytes(size)
