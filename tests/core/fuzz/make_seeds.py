"""Write a few good inputs for the fuzz target, so that it starts from real deflate streams: `make_seeds.py FOLDER`."""

import random
import sys
import zlib
from pathlib import Path


def main(folder: str) -> None:
    """Streams of every kind of block and of several strategies, alone and several at once."""
    draw, target = random.Random(0), Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    texts = [
        b"",
        bytes(300),
        bytes(range(256)) * 3,
        b"abcabcabcabd" * 40,
        bytes(draw.randrange(256) for _ in range(700)),
        bytes(min(255, int(draw.expovariate(0.1))) for _ in range(2000)),
    ]
    strategies = (zlib.Z_DEFAULT_STRATEGY, zlib.Z_HUFFMAN_ONLY, zlib.Z_RLE, zlib.Z_FIXED)
    streams = []
    for text in texts:
        for level, strategy in [(0, strategies[0]), *((9, strategy) for strategy in strategies)]:
            packer = zlib.compressobj(level, zlib.DEFLATED, -15, 9, strategy)
            streams.append((len(text), packer.compress(text) + packer.flush()))
    for number, (size, data) in enumerate(streams):
        (target / f"one-{number}").write_bytes(bytes([0, size & 255, size >> 8]) + data)
    # Streams that are read at once share the bytes evenly, so those that go together are of one length.
    for number, (size, data) in enumerate(streams):
        (target / f"three-{number}").write_bytes(bytes([2, *[size & 255, size >> 8] * 3]) + data * 3)


if __name__ == "__main__":
    main(*sys.argv[1:])
