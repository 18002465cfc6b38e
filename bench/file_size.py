"""How small a `.pof` file is, and how fast it is read, compared with other formats.

    python bench/file_size.py [--rounds 5]              needs pip install 'pof[bench]' and npm

It uses real ImageNet weights (see imagenet_weights.py) with float16 values, at 70 and 90 %, with and without the band
from 30 % filled. Peers get the same tensors in float16. The i.i.d. limit has three parts for each pruned tensor: the
entropy of zero, band or kept as independent symbols; one sign bit for each nonzero weight; and, for each kept weight,
the empirical entropy of exponent and 3 mantissa bits, plus 7 bits. Tensors that are not pruned count neither for the
limit nor in the ratio to it. Prints JSON.
"""

import argparse
import io
import json
import lzma
import os
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import zstandard
from safetensors.torch import save as save_safetensors
from torch import Tensor
from zipnn import ZipNN

import imagenet_weights
import pof
from pof.core import library as native
from pof.file.contents import contents_of_state_dict
from pof.file.writing import save_state_dict
from timing import interleaved, machine, median_milliseconds

State = dict[str, Tensor]
CASES = ((0.7, None), (0.7, 0.3), (0.9, None), (0.9, 0.3))


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    networks = {"resnet18-shaped": imagenet_weights.resnet18_shaped(), "resnet50": imagenet_weights.resnet50_tensors()}
    with tempfile.TemporaryDirectory() as folder:
        result = {
            "bench": "file_size",
            "networks": {name: _network(state, Path(folder), options.rounds) for name, state in networks.items()},
            "rounds": options.rounds,
            "machine": machine(),
        }
    print(json.dumps(result, indent=2))


def _network(state: State, folder: Path, rounds: int) -> dict[str, object]:
    numbers = sum(value.numel() for value in state.values())
    layered, single = folder / "layered.pof", folder / "single.pof"
    seconds = [_timed(lambda: save_state_dict(state, layered, values="exact")) for _ in range(3)]
    exact = layered.stat().st_size
    dense = _decode_speed(layered, numbers, rounds)
    save_state_dict(state, layered, values="fp16")
    save_state_dict(state, single, values="fp16", stages=())
    file = pof.open(layered)
    stage = next(stage for stage in file.stages if stage.state == (0.9, 0.9))
    return {
        "numbers": numbers,
        "save_seconds_exact_three_stages": round(statistics.median(seconds), 2),
        "bytes_exact_three_stages": exact,
        "read_dense_exact_three_stages_megabytes_a_second": dense,
        "bytes_fp16_three_stages": layered.stat().st_size,
        "bytes_fp16_one_stage": single.stat().st_size,
        "layers_cost": round(layered.stat().st_size / single.stat().st_size - 1, 4),
        "bytes_read_at_90_percent_against_its_stage": round(file.bytes_for(0.9) / stage.cumulative, 4),
        "states": [_case(state, sparsity, band, folder, rounds) for sparsity, band in CASES],
    }


def _case(state: State, sparsity: float, band: float | None, folder: Path, rounds: int) -> dict[str, object]:
    """One pruned or recovered state as its own file, compared with the same tensors in other formats."""
    whole, path = folder / "whole.pof", folder / "state.pof"
    save_state_dict(state, whole, values="fp16", stages=(sparsity,) if band is None else (sparsity, band))
    file = pof.open(whole)
    tensors = file.state_dict(sparsity, band)
    save_state_dict(tensors, path, values="fp16", stages=())
    half = {name: value.half() if value.dim() > 1 else value for name, value in tensors.items()}
    raw = save_safetensors(half)
    limit = _limit(state, sparsity, band)
    sizes = {
        "pof": path.stat().st_size,
        "pof, as the first stages of a file": file.bytes_for(sparsity, band),
        "safetensors": len(raw),
        "torch.save": len(_torch_save(half)),
        "deflate -6": len(zlib.compress(raw, 6)),
        "xz -6": len(lzma.compress(raw, preset=6)),
        "zstd -19": len(zstandard.ZstdCompressor(level=19).compress(raw)),
        "ZipNN": len(_zipnn().compress(raw)),
        "bitmask + values": _bitmask(half),
    }
    base = pof.open(path).stages[0].cumulative
    return {
        "sparsity": sparsity,
        "recover_from": band,
        "bytes": sizes,
        "times_the_iid_limit": round((sizes["pof"] - base) / limit, 4),
        "times_smaller": {name: round(size / sizes["pof"], 3) for name, size in sizes.items()},
        "decode": _decode(path, raw, rounds),
    }


def _decode(path: Path, raw: bytes, rounds: int) -> dict[str, object]:
    """Megabytes of float32 per second on one thread, from a file to tensors; ZipNN starts from memory."""
    packed = _zipnn().compress(raw)
    numbers = sum(value.numel() for value in pof.open(path).state_dict().values())
    seconds = interleaved({"pof": lambda: pof.open(path).state_dict(), "ZipNN": lambda: _zipnn_float32(packed)}, rounds)
    speed = {name: round(4e-3 * numbers / ms) for name, ms in median_milliseconds(seconds).items()}
    return {**speed, "pof in numpy": _without_core(lambda: _decode_speed(path, numbers, rounds))}


def _decode_speed(path: Path, numbers: int, rounds: int) -> int:
    seconds = [_timed(lambda: pof.open(path).state_dict()) for _ in range(rounds)]
    return round(4e-6 * numbers / statistics.median(seconds))


def _without_core(measure: Callable[[], int]) -> int:
    """Measure with the compiled core switched off."""
    os.environ[native.SWITCH] = "1"
    native.core.cache_clear()
    try:
        return measure()
    finally:
        del os.environ[native.SWITCH]
        native.core.cache_clear()


def _zipnn() -> ZipNN:
    return ZipNN(input_format="byte", bytearray_dtype="float16", threads=1)


def _zipnn_float32(packed: bytes) -> Tensor:
    """The output of ZipNN as float32, which our reader returns too."""
    raw = _zipnn().decompress(packed)
    usable = len(raw) // 2 * 2
    return torch.frombuffer(bytearray(raw[:usable]), dtype=torch.float16).float()


def _torch_save(state: State) -> bytes:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def _bitmask(state: State) -> int:
    """The bytes of one bit per weight, plus the nonzero values."""
    return sum(
        (value.numel() + 7) // 8 + int(torch.count_nonzero(value)) * value.element_size()
        if value.dim() > 1
        else value.numel() * value.element_size()
        for value in state.values()
    )


def _limit(state: State, sparsity: float, band: float | None) -> float:
    bits = 0.0
    for entry in contents_of_state_dict(state).entries:
        magnitudes = np.sort(state[entry.name].half().flatten().view(torch.int16).numpy().view(np.uint16) & 0x7FFF)
        count, pruned = len(magnitudes), round(sparsity * len(magnitudes))
        zeros = pruned if band is None else round(band * count)
        classes = np.array([zeros, pruned - zeros, count - pruned])
        bits += count * _entropy(classes) + (count - zeros)
        bits += (count - pruned) * (7 + _entropy(np.bincount(magnitudes[pruned:] >> 7)))
    return bits / 8


def _entropy(counts: np.ndarray) -> float:
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
