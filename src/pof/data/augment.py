"""Augmentation as pure functions: random choices are arguments, so the same choices give the same bits."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from PIL.Image import Image

SCALE = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
TRIES = 10

Box = tuple[int, int, int, int]
"""The left, upper, right and lower edges, in pixels."""


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn uint8 (B, C, H, W) into contiguous float32; `mean` and `std` are (C,), for pixels from 0 to 1."""
    scaled = images.to(torch.float32, memory_format=torch.contiguous_format)
    return scaled.sub_(255 * mean[:, None, None]).div_(255 * std[:, None, None])


def crop_and_flip(images: Tensor, padding: int, top: Tensor, left: Tensor, flip: Tensor) -> Tensor:
    """Pad each image with zeros on all sides, crop it to its old size, and mirror it where asked.

    This is one gather, which is several times faster here than advanced indexing.

    Args:
        images: (B, C, H, W), of any type.
        padding: how many zeros to add on each side.
        top: int64 (B,), the first row of the crop, 0 to 2 * padding; `padding` gives the image itself.
        left: int64 (B,), the first column of the crop.
        flip: bool (B,), True to swap left and right.
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height) + top[:, None]
    columns = torch.arange(width)
    columns = torch.where(flip[:, None], columns.flip(0), columns) + left[:, None]
    pixels = rows[:, :, None] * (width + 2 * padding) + columns[:, None, :]
    padded = F.pad(images, (padding,) * 4).flatten(2)
    return padded.gather(2, pixels.flatten(1)[:, None].expand(-1, images.shape[1], -1)).view(images.shape)


def random_box(width: int, height: int, draws: np.random.RandomState) -> Box:
    """A random part of an image, 8 % to 100 % of its area, 3:4 to 4:3 (Szegedy et al., 2015, as in torchvision).

    If ten tries find none that fits, it is the largest centred part of an allowed shape.
    """
    for _ in range(TRIES):
        area = width * height * draws.uniform(*SCALE)
        ratio = math.exp(draws.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = int(draws.randint(width - across + 1)), int(draws.randint(height - down + 1))
            return left, upper, left + across, upper + down
    ratio = min(max(width / height, RATIO[0]), RATIO[1])
    return centred_box(width, height, min(width, round(height * ratio)), min(height, round(width / ratio)))


def centred_box(width: int, height: int, across: int, down: int) -> Box:
    """The middle of an image, `across` pixels wide and `down` pixels high."""
    left, upper = round((width - across) / 2), round((height - down) / 2)
    return left, upper, left + across, upper + down


def random_view(image: "Image", size: int, draws: np.random.RandomState) -> "Image":
    """A random part of `image` at `size` x `size`, mirrored half the time."""
    from PIL.Image import Resampling, Transpose

    view = image.crop(random_box(*image.size, draws)).resize((size, size), Resampling.BILINEAR)
    return view.transpose(Transpose.FLIP_LEFT_RIGHT) if draws.randint(2) else view


def middle_view(image: "Image", size: int) -> "Image":
    """The middle of `image`: its shorter side becomes 256/224 of `size`, then `size` x `size` is cut out."""
    from PIL.Image import Resampling

    short = round(size * 256 / 224)
    width, height = (short * side // min(image.size) for side in image.size)
    return image.resize((width, height), Resampling.BILINEAR).crop(centred_box(width, height, size, size))
