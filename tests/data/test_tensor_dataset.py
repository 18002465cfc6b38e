from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pof.data import DATASETS, Dataset, TensorDataset, digits
from pof.data.augment import crop_and_flip
from pof.data.batch_order import EpochOrder, stream
from pof.errors import PofError

MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.1)
COLUMNS = (torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None])


def pictures(number: int) -> tuple[Tensor, Tensor]:
    return torch.randint(1, 256, (number, 3, 6, 5), dtype=torch.uint8), torch.randint(0, 4, (number,))


@pytest.fixture
def splits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return pictures(50), pictures(13)


def made(splits: Any, padding: int = 2, flip: bool = True) -> TensorDataset:
    return TensorDataset(*splits, classes=4, mean=MEAN, std=STD, padding=padding, flip=flip)


def slow_crop_and_flip(image: Tensor, padding: int, top: int, left: int, flip: bool) -> Tensor:
    """A pixel at a time; what lies outside the image is 0."""
    channels, height, width = image.shape
    result = torch.zeros_like(image)
    for c in range(channels):
        for y in range(height):
            for x in range(width):
                from_y, from_x = y + top - padding, (width - 1 - x if flip else x) + left - padding
                if 0 <= from_y < height and 0 <= from_x < width:
                    result[c, y, x] = image[c, from_y, from_x]
    return result


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_crop_and_flip_equals_a_plain_loop(padding: int, dtype: torch.dtype) -> None:
    images = torch.randint(1, 256, (9, 2, 5, 7)).to(dtype)
    top, left = torch.randint(0, 2 * padding + 1, (2, 9))
    flip = torch.rand(9) < 0.5
    fast = crop_and_flip(images, padding, top, left, flip)
    for i, image in enumerate(images):
        assert torch.equal(fast[i], slow_crop_and_flip(image, padding, int(top[i]), int(left[i]), bool(flip[i])))


def test_a_batch_is_drawn_cropped_mirrored_and_normalised(splits: Any) -> None:
    """The whole of `train_batches` against a plain loop over images."""
    (images, labels), _ = splits
    batches = list(made(splits).train_batches(8, seed=3, epoch=2))
    expected = list(EpochOrder(50, 8, seed=3, epoch=2))
    assert len(batches) == len(expected) == 6
    for (index, members), (got, got_labels) in zip(expected, batches, strict=True):
        draws = stream("crop and flip", 3, 2, index)
        top, left = draws.randint(0, 5, (2, 8), dtype=np.int64)
        flip = draws.randint(0, 2, 8, dtype=np.int64)
        assert got_labels.tolist() == labels[torch.from_numpy(members)].tolist()
        for row, member in enumerate(members):
            pixels = slow_crop_and_flip(images[member], 2, int(top[row]), int(left[row]), bool(flip[row]))
            torch.testing.assert_close(got[row], (pixels / 255 - COLUMNS[0]) / COLUMNS[1])


def test_every_corner_and_both_sides_occur(splits: Any) -> None:
    images = torch.zeros(64, 1, 3, 3, dtype=torch.uint8)
    images[:, 0, 1, 0] = 255
    data = TensorDataset(
        (images, torch.zeros(64, dtype=torch.long)),
        (images, torch.zeros(64, dtype=torch.long)),
        classes=1,
        mean=[0],
        std=[1],
        padding=1,
        flip=True,
    )
    places = {
        tuple(map(tuple, image[0].nonzero().tolist()))
        for epoch in range(10)
        for image in next(data.train_batches(64, seed=0, epoch=epoch))[0]
    }
    shifts = {((y, x),) for y in range(3) for x in range(3)}
    assert places == shifts | {()}, "any of the nine places, or pushed out of the image"


def test_types_and_memory(splits: Any) -> None:
    data: Dataset = made(splits)
    assert (data.classes, data.shape, data.train_images, data.test_images) == (4, (3, 6, 5), 50, 13)
    for images, labels in (
        next(data.train_batches(8, seed=0, epoch=0)),
        next(data.test_batches(8)),
    ):
        assert (images.dtype, images.shape, labels.dtype, labels.shape) == (
            torch.float32,
            (8, 3, 6, 5),
            torch.int64,
            (8,),
        )
        assert images.is_contiguous()


def test_the_same_call_gives_the_same_bits_and_leaves_random_states_alone(splits: Any) -> None:
    data = made(splits)
    torch.manual_seed(5)
    np.random.seed(5)
    first = [x for x, _ in data.train_batches(8, seed=0, epoch=0)]
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(5)))
    assert np.random.rand() == np.random.RandomState(5).rand()
    again = [x for x, _ in data.train_batches(8, seed=0, epoch=0)]
    assert all(map(torch.equal, first, again))
    for other in ({"seed": 1, "epoch": 0}, {"seed": 0, "epoch": 1}):
        assert not torch.equal(first[0], next(data.train_batches(8, **other))[0])


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_resumed_run_on_any_number_of_ranks_sees_the_same_bits(splits: Any, ranks: int) -> None:
    data = made(splits)
    whole = list(data.train_batches(8, seed=1, epoch=4))[3:]
    parts = [data.train_batches(8, seed=1, epoch=4, start=3, rank=rank, ranks=ranks) for rank in range(ranks)]
    joined = [[torch.cat(tensors) for tensors in zip(*part, strict=True)] for part in zip(*parts, strict=True)]
    assert len(joined) == len(whole) == 3
    for (images, labels), (expected, expected_labels) in zip(joined, whole, strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, expected_labels)


def test_images_held_out_are_tested_on_and_never_trained_with(splits: Any) -> None:
    data = made(splits, padding=0, flip=False)
    part = data.holding_out(20)
    assert (part.train_images, part.test_images, part.shape, part.classes) == (30, 20, data.shape, 4)
    whole = [image for images, _ in data.train_batches(50, seed=0, epoch=0) for image in images]
    for seed in (0, 1):
        trained = [image for images, _ in part.train_batches(10, seed=seed, epoch=seed) for image in images]
        tested = [image for images, _ in part.test_batches(7) for image in images]
        assert len(trained) == 30
        keys = [sorted(image.sum().item() for image in found) for found in (trained + tested, whole)]
        assert keys[0] == keys[1], "each image of the train split is in one of both"
    again = made(splits, padding=0, flip=False).holding_out(20)
    for (one, labels), (other, same) in zip(part.test_batches(7), again.test_batches(7), strict=True):
        assert torch.equal(one, other)
        assert torch.equal(labels, same)
    assert (data.train_images, data.test_images) == (50, 13), "the dataset itself stays as it was"


@pytest.mark.parametrize("held", [50, 60, 0, -1, 2.5, True])
def test_there_must_be_images_left_to_train_with(splits: Any, held: Any) -> None:
    with pytest.raises(PofError, match="hold_out"):
        made(splits).holding_out(held)


def test_a_run_resumed_at_the_end_of_an_epoch_sees_nothing(splits: Any) -> None:
    assert list(made(splits).train_batches(8, seed=0, epoch=0, start=6)) == []


@pytest.mark.parametrize("ranks", [1, 2])
def test_test_batches_are_the_split_in_order(splits: Any, ranks: int) -> None:
    data = made(splits)
    batches = [pair for rank in range(ranks) for pair in data.test_batches(4, rank=rank, ranks=ranks)]
    images, labels = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
    torch.testing.assert_close(images, (splits[1][0] / 255 - COLUMNS[0]) / COLUMNS[1])
    assert torch.equal(labels, splits[1][1])


def test_what_comes_out_belongs_to_the_caller(splits: Any) -> None:
    data = TensorDataset(digits("train"), digits("test"), classes=10)
    expected = [next(data.test_batches(4)), next(data.train_batches(4, seed=0, epoch=0))]
    for images, labels in (next(data.test_batches(4)), next(data.train_batches(4, seed=0, epoch=0))):
        images.zero_()
        labels.zero_()
    for pair, again in zip(
        expected, [next(data.test_batches(4)), next(data.train_batches(4, seed=0, epoch=0))], strict=True
    ):
        assert all(map(torch.equal, pair, again))


def test_bad_arguments_are_refused_at_the_call_not_at_the_first_batch(splits: Any) -> None:
    data = made(splits)
    with pytest.raises(PofError, match="batch=51"):
        data.train_batches(51, seed=0, epoch=0)
    with pytest.raises(PofError, match="batch=5 must be a multiple of ranks=2"):
        data.test_batches(5, ranks=2)


def test_the_digits_are_a_dataset() -> None:
    data = DATASETS["digits"]()
    assert (data.classes, data.shape, data.train_images, data.test_images) == (10, (1, 8, 8), 1297, 500)
    images, labels = (torch.cat(tensors) for tensors in zip(*data.test_batches(128), strict=True))
    assert torch.equal(images, digits("test")[0])
    assert torch.equal(labels, digits("test")[1])
    shuffled, labels = next(data.train_batches(1297, seed=0, epoch=0))
    order = next(iter(EpochOrder(1297, 1297, seed=0, epoch=0)))[1]
    assert torch.equal(shuffled, digits("train")[0][torch.from_numpy(order)]), "no augmentation"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": (torch.zeros(5, 6, 5, dtype=torch.uint8), torch.zeros(5).long())}, r"train images must be \(N, C"),
        ({"train": (torch.zeros(5, 3, 6, 5).double(), torch.zeros(5).long())}, "torch.float64"),
        ({"test": (torch.zeros(0, 3, 6, 5, dtype=torch.uint8), torch.zeros(0).long())}, "at least one"),
        ({"test": (torch.zeros(5, 3, 6, 4, dtype=torch.uint8), torch.zeros(5).long())}, "must be alike"),
        ({"test": (torch.zeros(5, 3, 6, 5), torch.zeros(5).long())}, "must be alike"),
        ({"test": (torch.zeros(5, 3, 6, 5, dtype=torch.uint8), torch.zeros(4).long())}, r"test labels must be \(5,\)"),
        ({"test": (torch.zeros(5, 3, 6, 5, dtype=torch.uint8), torch.zeros(5))}, "int64"),
        ({"classes": 1}, r"labels must be 0 to 0 \(classes=1\)"),
        ({"classes": 0}, "classes=0"),
        ({"mean": None}, "mean=None"),
        ({"mean": (0.5,)}, "3 numbers each"),
        ({"std": (0.5, 0.5, 0.0)}, "std above 0"),
        ({"padding": -1}, "padding=-1"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(splits: Any, change: dict[str, Any], message: str) -> None:
    settings = {"train": splits[0], "test": splits[1], "classes": 4, "mean": MEAN, "std": STD, **change}
    with pytest.raises(PofError, match=message):
        TensorDataset(**settings)


def test_float_images_are_ready_and_take_no_scale() -> None:
    split = (torch.zeros(5, 1, 2, 2), torch.zeros(5).long())
    with pytest.raises(PofError, match="only for those"):
        TensorDataset(split, split, classes=1, mean=[0], std=[1])
