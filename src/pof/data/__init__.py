"""Datasets, one file each; `DATASETS` finds one by its name."""

from collections.abc import Callable

from pof.data.cifar10 import cifar10
from pof.data.digits import digits, digits_dataset
from pof.data.fashion_mnist import fashion_mnist
from pof.data.imagefolder import ImageFolder
from pof.data.protocol import Dataset
from pof.data.tensors import TensorDataset

DATASETS: dict[str, Callable[..., Dataset]] = {
    "digits": digits_dataset,
    "cifar10": cifar10,
    "fashion_mnist": fashion_mnist,
    "imagefolder": ImageFolder,
}

__all__ = [
    "DATASETS",
    "Dataset",
    "ImageFolder",
    "TensorDataset",
    "cifar10",
    "digits",
    "digits_dataset",
    "fashion_mnist",
]
