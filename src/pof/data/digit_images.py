"""The 1,797 handwritten digits of scikit-learn (8 x 8, grey, ten classes), which come with the package.

This real dataset trains in seconds on a CPU, for tests, examples and a first try without a download.

Credit: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
Repository, 1998, https://doi.org/10.24432/C50P49, licensed under CC BY 4.0. The images are those of the
repository's test file, unchanged except for their type. `digits.npz` was made by

    import numpy, sklearn.datasets
    source = sklearn.datasets.load_digits()
    numpy.savez_compressed("digits.npz", images=source.images.astype("u1"), labels=source.target.astype("u1"))
"""

from importlib import resources
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pof.data.tensor_dataset import TensorDataset
from pof.errors import PofError

_TEST_SIZE = 500
_SPLITS = ("train", "test")


def digits(split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
    """Return the images and labels of one split: 1,297 to train on, or 500 to test on.

    The split is fixed and stratified: each class has its share of both parts, to within one image.

    Args:
        split: "train" or "test".

    Returns:
        Images, float32 (N, 1, 8, 8), shifted and scaled so that the train split has mean 0 and standard
        deviation 1; and labels, int64 (N,).

    Raises:
        PofError: `split` is neither of the two.

    Example:
        >>> images, labels = digits("test")
        >>> images.shape, labels.shape
        (torch.Size([500, 1, 8, 8]), torch.Size([500]))
    """
    if split not in _SPLITS:
        raise PofError(f"split={split!r} is unknown: pass one of {', '.join(map(repr, _SPLITS))}")
    images, labels = _load()
    held_out = _held_out(labels)
    train = images[~held_out].astype(np.float64)
    chosen = held_out if split == "test" else ~held_out
    scaled = ((images[chosen] - train.mean()) / train.std()).astype(np.float32)
    return torch.from_numpy(scaled).unsqueeze(1), torch.from_numpy(labels[chosen].astype(np.int64))


def digits_dataset() -> TensorDataset:
    """Return both splits of the digits as a dataset, without augmentation.

    Example:
        >>> digits_dataset().shape
        (1, 8, 8)
    """
    return TensorDataset(digits("train"), digits("test"), classes=10)


def _load() -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    path = resources.files("pof.data").joinpath("digits.npz")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return arrays["images"], arrays["labels"]


def _held_out(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return a mask that is True for the test split.

    The shuffled images are laid out class by class and picked at even steps, which stratifies them.
    """
    # RandomState, not default_rng: only its stream is guaranteed to be the same in every version of numpy.
    order = np.random.RandomState(0).permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    mask = np.zeros(len(labels), dtype=np.bool_)
    mask[by_class[np.arange(_TEST_SIZE) * len(labels) // _TEST_SIZE]] = True
    return mask
