import gzip
import hashlib
import importlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pof.data.dataset_cache import data_home
from pof.errors import PofError

module = importlib.import_module("pof.data.fashion_mnist_images")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


@pytest.fixture
def fake(site: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """A Fashion-MNIST of 20 and 7 images; neither the site nor Debian has it yet."""
    random = np.random.RandomState(0)
    arrays = {}
    for names, number in ((module.TRAIN, 20), (module.TEST, 7)):
        arrays[names[0]] = random.randint(0, 256, (number, 28, 28))
        arrays[names[1]] = random.randint(0, 10, number)
    files = {name: idx(arrays[name]) for name in module.FILES}
    monkeypatch.setattr(module, "FILES", {name: md5(content) for name, content in files.items()})
    packed = {name: gzip.compress(content) for name, content in files.items()}
    monkeypatch.setattr(module, "PUBLISHED", {name: md5(content) for name, content in packed.items()})
    monkeypatch.setattr(module, "SITE", site.address)
    monkeypatch.setattr(module, "DEBIAN", tmp_path / "debian")
    return packed


def check(packed: dict[str, bytes]) -> None:
    data = module.fashion_mnist()
    assert (data.classes, data.shape, data.train_images, data.test_images) == (10, (1, 28, 28), 20, 7)
    images, labels = next(data.test_batches(7))
    raw = {name: np.frombuffer(gzip.decompress(content), np.uint8) for name, content in packed.items()}
    expected = (torch.from_numpy(raw[module.TEST[0]][16:].reshape(7, 1, 28, 28).copy()) / 255 - 0.2860) / 0.3530
    torch.testing.assert_close(images, expected)
    assert labels.tolist() == raw[module.TEST[1]][8:].tolist()


def test_from_the_site(fake: dict[str, bytes], site: Any, home: Path) -> None:
    site.files |= {f"{name}.gz": content for name, content in fake.items()}
    check(fake)
    check(fake)
    assert site.asked == [f"{name}.gz" for name in module.FILES], "once, then from the cache"
    assert {path.name for path in (home / "fashion_mnist").iterdir()} == {*module.FILES, ".lock"}


def test_from_debian_whose_gzip_headers_differ(fake: dict[str, bytes]) -> None:
    module.DEBIAN.mkdir()
    for name, content in fake.items():
        (module.DEBIAN / f"{name}.gz").write_bytes(gzip.compress(gzip.decompress(content), mtime=1))
    check(fake)


def test_the_message_names_the_apt_command(fake: dict[str, bytes], home: Path) -> None:
    with pytest.raises(PofError, match=r"not installed: .*`sudo apt-get install dataset-fashion-mnist`") as caught:
        module.fashion_mnist()
    assert str(home / "fashion_mnist") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 3, 4)])
def test_idx(shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape)
    (tmp_path / "x").write_bytes(idx(array))
    read = module.read_idx(tmp_path / "x")
    assert read.dtype == torch.uint8
    assert read.shape == shape
    assert read.tolist() == array.tolist()


GOOD = idx(np.arange(12).reshape(3, 4))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "x is not an IDX file of bytes: it begins with nothing"),
        (b"\0\0\x08", "begins with 00 00 08"),
        (GOOD[:6], "begins with 00 00 08 02"),
        (b"\1" + GOOD[1:], "begins with 01 00 08 02"),
        (b"\0\0\x0d" + GOOD[3:], "begins with 00 00 0d 02"),
        (b"\x1f\x8b\x08\x08" + GOOD, "begins with 1f 8b"),
        (GOOD[:-1], r"must hold \(3, 4\) bytes, 12 in all: it holds 11"),
        (GOOD + b"\0", "it holds 13"),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, *(2**32 - 1,) * 3), "it holds 0"),
    ],
)
def test_malformed_idx(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(PofError, match=message):
        module.read_idx(tmp_path / "x")


@pytest.mark.skipif(
    not module.DEBIAN.is_dir() and not (data_home() / "fashion_mnist" / module.TRAIN[0]).exists(),
    reason="Fashion-MNIST is neither in the cache nor installed",
)
def test_the_real_fashion_mnist() -> None:
    data = module.fashion_mnist()
    assert (data.train_images, data.test_images) == (60_000, 10_000)
    plain = torch.cat([images for images, _ in data.test_batches(2500)])
    assert abs(float(plain.mean())) < 0.02
    assert abs(float(plain.std()) - 1) < 0.02
