"""Files that come with the package: networks that we trained, and a sample of CIFAR-10's test images.

The sample is the first 2,000 of the 10,000 test images, unchanged (A. Krizhevsky, Learning Multiple Layers of Features
from Tiny Images, 2009). As neighbours differ little, differences are stored: between colours first, then along columns
and rows. lzma makes them small: see `pack_images`.
"""

import lzma
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pof.checks import check_choice
from pof.data.augment import normalise
from pof.data.cifar10_images import MEAN, STD

NETWORKS = ("cifar10-resnet20-nested", "cifar10-resnet20-dense")
SAMPLE, SHAPE = "cifar10-sample.xz", (3, 32, 32)
Images = NDArray[np.uint8]


def network(name: str) -> Path:
    """The path of a shipped network's `.pof` file."""
    check_choice(name, "name", NETWORKS)
    return Path(str(resources.files(__package__) / f"{name}.pof"))


def cifar10_sample() -> tuple[Tensor, Tensor]:
    """The 2,000 test images, normalised for a network, and their labels."""
    images, labels = unpack_images((resources.files(__package__) / SAMPLE).read_bytes())
    return normalise(torch.from_numpy(images), torch.tensor(MEAN), torch.tensor(STD)), torch.from_numpy(labels).long()


def pack_images(images: Images, labels: Images) -> bytes:
    """Pack images (N, 3, 32, 32) and labels as they are stored."""
    stored = images.copy()
    for axis in (1, 2, 3):
        stored = np.diff(stored, axis=axis, prepend=np.zeros_like(stored.take([0], axis)))
    return lzma.compress(labels.tobytes() + stored.tobytes(), preset=9)


def unpack_images(data: bytes) -> tuple[Images, Images]:
    """The inverse of `pack_images`."""
    flat = np.frombuffer(lzma.decompress(data), np.uint8)
    count = len(flat) // (1 + int(np.prod(SHAPE)))
    labels, images = flat[:count].copy(), flat[count:].reshape(count, *SHAPE)
    for axis in (3, 2, 1):
        images = np.cumsum(images, axis=axis, dtype=np.uint8)
    return images, labels
