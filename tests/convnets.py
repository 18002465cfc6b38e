"""Small networks with structure to fit, and inputs for them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def inputs(count: int = 256, seed: int = 0) -> Tensor:
    """Images whose neighbouring pixels and channels belong together, as in real ones."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 4, 4, generator=generator)
    fine = 0.3 * torch.randn(count, 3, 12, 12, generator=generator)
    return F.interpolate(coarse, size=(12, 12), mode="bilinear", align_corners=False) + fine


def convnet(*, depthwise: bool = False, seed: int = 0) -> nn.Sequential:
    """A convolutional network in evaluation mode, whose statistics are those of some images."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16 if depthwise else 2, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10),
    )  # fmt: skip
    for batch in inputs(512, 9).split(64):
        model(batch)
    with torch.no_grad():
        model[11].weight.mul_(10.0)  # classes that differ, as those of a trained network do
    return model.eval()
