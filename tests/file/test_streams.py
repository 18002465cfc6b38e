"""The streams of a chunk: many side by side, by the compiled core and by zlib alike; no more memory than can be."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from pof.errors import PofFileError
from pof.file.streams import DEFLATED, SEVENS, STORED, StreamReader, StreamWriter, sevens_length, varint

Switch = Callable[..., None]


def written(streams: list[NDArray[np.uint8]]) -> bytes:
    out = StreamWriter()
    for stream in streams:
        out.add([stream])
    return out.chunk()


def read(chunk: bytes, count: int) -> list[NDArray[np.uint8]]:
    reader = StreamReader(chunk)
    found = [reader.next() for _ in range(count)]
    reader.end()
    return found


def skewed(generator: np.random.Generator, size: int) -> NDArray[np.uint8]:
    return np.minimum(generator.exponential(generator.uniform(0.5, 40), size), 255).astype(np.uint8)


@pytest.mark.parametrize("on", [True, False])
def test_streams_of_all_lengths_are_decoded_side_by_side(switch_core: Switch, on: bool) -> None:
    switch_core(on=on)
    generator = np.random.default_rng(0)
    for count in (0, 1, 2, 3, 7, 30):
        sizes = generator.choice([0, 1, 7, 8, 9, 100, 5000, 70_000], count)
        streams = [skewed(generator, int(size)) for size in sizes]
        found = read(written(streams), count)
        assert all(map(np.array_equal, streams, found))


def test_one_broken_stream_among_whole_ones_is_found(switch_core: Switch) -> None:
    generator = np.random.default_rng(1)
    streams = [skewed(generator, 3000) for _ in range(5)]
    chunk = written(streams)
    head = 1 + 5 * (len(varint(3000)) + 3)
    for _ in range(300):
        broken = bytearray(chunk)
        broken[int(generator.integers(head, len(chunk)))] ^= 1 << int(generator.integers(8))
        answers = []
        for on in (True, False):
            switch_core(on=on)
            try:
                answers.append([stream.tobytes() for stream in read(bytes(broken), 5)])
            except PofFileError:
                answers.append([])
        assert answers[0] == answers[1]


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("size", [70_000, 70_001, 70_007])
def test_noise_of_seven_bits_is_packed(switch_core: Switch, on: bool, size: int) -> None:
    switch_core(on=on)
    noise = np.random.default_rng(size).integers(0, 128, size, np.uint8)
    chunk = written([noise])
    assert len(chunk) == 1 + 2 * len(varint(size)) + 1 + sevens_length(size)
    assert np.array_equal(read(chunk, 1)[0], noise)
    # By hand: the first 8 numbers are 56 bits, the first one lowest.
    word = sum(int(number) << (7 * place) for place, number in enumerate(noise[:8]))
    assert chunk[8:15] == word.to_bytes(7, "little")


@pytest.mark.parametrize("on", [True, False])
def test_broken_sevens_are_refused(switch_core: Switch, on: bool) -> None:
    switch_core(on=on)

    def chunk(size: int, data: bytes) -> bytes:
        return varint(1) + varint(size) + varint(len(data)) + bytes([SEVENS]) + data

    assert read(chunk(3, b"\x01\x01\x00\x00\x00\x00\x00"), 1)[0].tolist() == [1, 2, 0]
    with pytest.raises(PofFileError, match="does not end with zeros"):
        read(chunk(3, b"\x01\x01\x00\x00\x00\x00\x01"), 1)
    for size, data in ((3, b"\x01" * 6), (9, b"\x01" * 7), (0, b"\x00" * 7)):
        with pytest.raises(PofFileError, match="wrong length"):
            read(chunk(size, data), 1)


def test_claims_are_checked_before_memory_is_asked_for() -> None:
    for method in (STORED, DEFLATED, SEVENS, 3):
        with pytest.raises(PofFileError):
            read(varint(1) + varint(1 << 50) + varint(2) + bytes([method]) + b"\x03\x00", 1)
