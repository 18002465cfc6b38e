"""Datasets, one file each; `DATASETS` finds one by its name."""

from pof.data.cifar10_images import cifar10
from pof.data.digit_images import digits, digits_dataset
from pof.data.fashion_mnist_images import fashion_mnist
from pof.data.image_folder import ImageFolder
from pof.data.protocol import Dataset, KnownDataset
from pof.data.tensor_dataset import TensorDataset

DATASETS = {
    "digits": KnownDataset(digits_dataset, (1, 8, 8)),
    "cifar10": KnownDataset(cifar10, (3, 32, 32)),
    "fashion_mnist": KnownDataset(fashion_mnist, (1, 28, 28)),
    "imagefolder": KnownDataset(ImageFolder, None, settings=("root", "workers")),
}
"""The known datasets, by the names that recipes use."""

__all__ = [
    "DATASETS",
    "Dataset",
    "ImageFolder",
    "KnownDataset",
    "TensorDataset",
    "cifar10",
    "digits",
    "digits_dataset",
    "fashion_mnist",
]
