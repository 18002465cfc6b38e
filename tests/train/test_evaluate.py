"""What states are tested with."""

import torch
from torch import Tensor

from pof.data.tensors import TensorDataset
from pof.train.evaluate import BATCH, CALIBRATION_IMAGES, calibration_batches


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(count)), torch.arange(count) % 2


def test_statistics_come_from_augmented_training_images() -> None:
    train = images(4000)
    data = TensorDataset(train, images(10), classes=2, padding=2, flip=True)
    drawn = torch.cat(list(calibration_batches(data)))
    assert len(drawn) == CALIBRATION_IMAGES
    assert drawn.is_contiguous(memory_format=torch.channels_last)
    seen = {tuple(image.flatten().tolist()) for image in train[0]}
    as_they_are = sum(tuple(image.flatten().tolist()) in seen for image in drawn)
    assert 0 < as_they_are < CALIBRATION_IMAGES / 10, "1 of 25 crops moves nothing, half of them flipped"
    again = torch.cat(list(calibration_batches(data)))
    assert torch.equal(drawn, again), "the same images for every state"


def test_a_small_set_is_used_whole() -> None:
    data = TensorDataset(images(BATCH - 1), images(10), classes=2)
    assert [len(batch) for batch in calibration_batches(data)] == [BATCH - 1]
