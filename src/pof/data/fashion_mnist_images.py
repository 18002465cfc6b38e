"""Fashion-MNIST: 70,000 grey images of 28 x 28 in ten classes; 60,000 to train on and 10,000 to test on.

Credit: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", 2017, https://github.com/zalandoresearch/fashion-mnist, MIT licence.

The cache holds the four files unpacked. The .gz files of Debian's package differ from the published ones, but only in
gzip's header: with the file's name and time (2017-08-31 10:50) put back, they have the published checksums.
"""

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pof.data.archives import unpack_gzip
from pof.data.dataset_cache import kept_or_downloaded, obtain
from pof.data.tensor_dataset import TensorDataset
from pof.errors import PofError

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FILES = {
    "train-images-idx3-ubyte": "md5:f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "train-labels-idx1-ubyte": "md5:9018921c3c673c538a1fc5bad174d6f9",
    "t10k-images-idx3-ubyte": "md5:8181f5470baa50b63fa0f6fddb340f0a",
    "t10k-labels-idx1-ubyte": "md5:15d484375f8d13e6eb1aabb0c3f46965",
}
"""The checksums of the unpacked files."""
SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
PUBLISHED = {
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
"""The published checksums of the .gz files."""
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
INSTALL = "sudo apt-get install dataset-fashion-mnist"
BY_HAND = (
    f"on Debian or Ubuntu run `{INSTALL}`, or download {', '.join(f'{file}.gz' for file in FILES)} from {SITE}/ "
    "elsewhere and put them into {folder} (POF_DATA names another place for all datasets)"
)
MEAN, STD = (0.2860,), (0.3530,)


def fashion_mnist(*, augment: bool = True) -> TensorDataset:
    """Return Fashion-MNIST from the cache, else from its site, else from Debian's package `dataset-fashion-mnist`.

    Args:
        augment: in training, pad by 4 and crop at random, and mirror half of the images.

    Raises:
        PofError: it cannot be obtained; the message says what to do by hand.
    """
    folder = obtain("fashion_mnist", FILES, {"official site": _from_site, "Debian's package": _from_debian}, BY_HAND)
    train, test = (
        (read_idx(folder / images)[:, None], read_idx(folder / labels).long()) for images, labels in (TRAIN, TEST)
    )
    padding = 4 if augment else 0
    return TensorDataset(train, test, classes=10, mean=MEAN, std=STD, padding=padding, flip=augment)


def read_idx(path: Path) -> Tensor:
    """Read a file in the IDX format with elements of type uint8.

    It has two zero bytes, the type (8), the number of dimensions, each size as a big-endian uint32, then the elements.

    Raises:
        PofError: it is not such a file, or has more or fewer elements than it says.
    """
    content = path.read_bytes()
    if content[:3] != b"\0\0\x08" or len(content) < 4 or len(content) < 4 + 4 * content[3]:
        raise PofError(f"{path} is not an IDX file of bytes: it begins with {content[:4].hex(' ') or 'nothing'}")
    start = 4 + 4 * content[3]
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    if len(content) - start != math.prod(shape):
        raise PofError(
            f"{path} must hold {shape} bytes, {math.prod(shape):,} in all: it holds {len(content) - start:,}"
        )
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy())


def _from_site(folder: Path, incoming: Path) -> None:
    for file, checksum in PUBLISHED.items():
        unpack_gzip(kept_or_downloaded(f"{SITE}/{file}.gz", checksum, folder, incoming), incoming / file)


def _from_debian(folder: Path, incoming: Path) -> None:
    if not DEBIAN.is_dir():
        raise PofError(f"it is not installed: {DEBIAN} is missing")
    for file in FILES:
        unpack_gzip(DEBIAN / f"{file}.gz", incoming / file)
