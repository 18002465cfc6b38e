from importlib import resources
from typing import Any

import numpy as np
import pytest
import torch

from pof.data import digits
from pof.errors import PofError


@pytest.fixture(scope="module")
def source() -> Any:
    from sklearn.datasets import load_digits

    return load_digits()


def split_as_pixels(split: Any, source: Any) -> tuple[np.ndarray, np.ndarray]:
    """Undo the normalisation: the smallest value is grey 0, the largest is sklearn's own largest."""
    images, labels = digits(split)
    low, high = images.min(), images.max()
    pixels = (images - low) / (high - low) * source.images.max()
    assert torch.allclose(pixels, pixels.round(), atol=1e-4)
    return pixels.round().squeeze(1).numpy().astype(np.uint8), labels.numpy()


def test_shapes_and_types() -> None:
    for split, size in (("train", 1297), ("test", 500)):
        images, labels = digits(split)  # type: ignore[arg-type]
        assert (images.shape, images.dtype) == ((size, 1, 8, 8), torch.float32)
        assert (labels.shape, labels.dtype) == ((size,), torch.int64)
        assert images.is_contiguous()
        assert images.isfinite().all()


def test_the_train_split_has_mean_0_and_std_1() -> None:
    train, _ = digits("train")
    test, _ = digits("test")
    assert train.double().mean().item() == pytest.approx(0, abs=1e-6)
    assert train.double().std(correction=0).item() == pytest.approx(1, abs=1e-6)
    # The same shift and scale for both: background (grey 0) is one value, not one a split.
    assert train.min() == test.min()
    assert train.max() == test.max()


def test_the_stored_arrays_are_sklearns(source: Any) -> None:
    with (
        resources.files("pof.data").joinpath("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        assert set(arrays) == {"images", "labels"}
        images, labels = arrays["images"], arrays["labels"]
    assert images.dtype == labels.dtype == np.uint8
    assert np.array_equal(images, source.images)
    assert np.array_equal(labels, source.target)


def test_the_splits_are_disjoint_and_hold_every_digit_of_sklearn(source: Any) -> None:
    label_of = {image.astype(np.uint8).tobytes(): int(y) for image, y in zip(source.images, source.target, strict=True)}
    assert len(label_of) == 1797, "no image occurs twice, so its bytes identify it"
    seen: set[bytes] = set()
    for split in ("train", "test"):
        images, labels = split_as_pixels(split, source)
        keys = [image.tobytes() for image in images]
        assert [label_of[key] for key in keys] == labels.tolist()
        assert not seen & set(keys)
        seen |= set(keys)
    assert seen == set(label_of)


def test_the_split_is_stratified(source: Any) -> None:
    _, labels = digits("test")
    share = np.bincount(source.target) * 500 / 1797
    assert np.abs(np.bincount(labels.numpy()) - share).max() < 1


def test_the_split_is_fixed(source: Any) -> None:
    images, _ = split_as_pixels("test", source)
    position = {image.astype(np.uint8).tobytes(): i for i, image in enumerate(source.images)}
    held_out = [position[image.tobytes()] for image in images]
    assert held_out[:10] == [1, 8, 10, 15, 21, 26, 29, 30, 32, 37]
    assert sum(i * p for i, p in enumerate(held_out)) == 149_378_040
    first, again = digits("test"), digits("test")
    assert torch.equal(first[0], again[0])
    first[0].zero_()
    assert torch.equal(digits("test")[0], again[0]), "each call gives tensors of its own"


def test_the_split_leaves_global_random_state_alone() -> None:
    np.random.seed(1)
    expected = np.random.rand()
    np.random.seed(1)
    digits("train")
    assert np.random.rand() == expected


def test_a_linear_model_learns_it() -> None:
    """Least squares is right on over 90 % of the test split: images and labels belong together."""
    train, test = digits("train"), digits("test")
    features = [torch.cat([x.flatten(1), torch.ones(len(x), 1)], 1).double() for x, _ in (train, test)]
    targets = torch.nn.functional.one_hot(train[1], 10).double()
    weights = torch.linalg.lstsq(features[0], targets, driver="gelsd").solution
    accuracy = ((features[1] @ weights).argmax(1) == test[1]).double().mean().item()
    assert accuracy > 0.9


@pytest.mark.parametrize("split", ["valid", "", "Train", None])
def test_an_unknown_split_is_an_error_that_lists_the_known(split: Any) -> None:
    with pytest.raises(PofError, match="'train', 'test'") as caught:
        digits(split)
    assert f"split={split!r}" in str(caught.value)
    assert isinstance(caught.value, ValueError)
