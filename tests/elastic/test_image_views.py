"""Random views of images: parts of the same images for networks that take them, shifted ones for others."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pof.elastic.image_views import ImageViews


def numbered(count: int, channels: int, height: int, width: int) -> Tensor:
    """Images in which every pixel has another value, none of them 0."""
    return torch.arange(1.0, 1 + count * channels * height * width).view(count, channels, height, width)


def views(takes: bool = True) -> ImageViews:
    return ImageViews(lambda batch: takes)


@pytest.mark.parametrize("seed", range(8))
def test_a_large_image_is_cropped_and_perhaps_mirrored(seed: int) -> None:
    batch = numbered(2, 3, 160, 224)
    view = views().of(batch, torch.Generator().manual_seed(seed))
    assert view.shape == (2, 3, 128, 160)
    rows = view[0, 0]
    step = float(rows[0, 1] - rows[0, 0])
    assert step in (1.0, -1.0)
    unmirrored = view if step > 0 else view.flip(3)
    top, left = divmod(int(unmirrored[0, 0, 0, 0]) - 1, 224)
    assert torch.equal(unmirrored, batch[:, :, top : top + 128, left : left + 160])


@pytest.mark.parametrize(("takes", "shape"), [(True, (2, 3, 32, 32)), (False, (2, 1, 224, 224))])
def test_small_images_and_networks_of_one_size_see_shifted_ones(takes: bool, shape: tuple[int, ...]) -> None:
    batch = numbered(*shape)
    seen = {views(takes).of(batch, torch.Generator().manual_seed(seed)).sum().item() for seed in range(8)}
    assert len(seen) > 4
    view = views(takes).of(batch, torch.Generator().manual_seed(1))
    assert view.shape == shape
    assert set(view[view != 0].tolist()) <= set(batch.flatten().tolist())
    assert float((view != 0).float().mean()) > 0.75 * 0.75


def test_the_network_is_asked_once_for_each_size() -> None:
    asked: list[Any] = []
    some = ImageViews(lambda batch: not asked.append(tuple(batch.shape)))  # type: ignore[func-returns-value]
    for size in (224, 224, 160, 224):
        some.of(torch.ones(4, 3, size, size), torch.Generator().manual_seed(0))
    assert asked == [(1, 3, 160, 160), (1, 3, 128, 128)]


@pytest.mark.parametrize(
    "batch",
    [torch.ones(4, 16), torch.ones(4, 3, 32, 32, dtype=torch.long), torch.ones(4, 8, 32, 32), {"x": 1}, [], "no"],
)
def test_what_is_no_image_stays(batch: Any) -> None:
    assert views().of(batch, torch.Generator().manual_seed(0)) is batch


def test_labels_beside_images_stay() -> None:
    labels = torch.arange(4)
    view = views().of((torch.ones(4, 3, 224, 224), labels), torch.Generator().manual_seed(0))
    assert type(view) is tuple
    assert view[0].shape == (4, 3, 160, 160)
    assert view[1] is labels
