"""MobileNetV2, with torchvision's state_dict names and shapes, and its variant for CIFAR.

Reference: Sandler, Howard, Zhu, Zhmoginov, Chen, "MobileNetV2: Inverted Residuals and Linear Bottlenecks",
CVPR 2018. The rows of `_STAGES` are those of the paper's table 2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pof.errors import PofError

# (expansion, channels, blocks, stride of the first block)
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
# A CIFAR image is 7 times smaller, so the stem and the first strided stage keep its resolution.
_CIFAR_STAGES = (_STAGES[0], (6, 24, 2, 1), *_STAGES[2:])


def _scaled(channels: int, width_mult: float) -> int:
    """Round `channels * width_mult` to a multiple of 8, at most 10 % below the product."""
    exact = channels * width_mult
    rounded = max(8, int(exact + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * exact else rounded


def _conv_bn_relu(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Widen (1 x 1), filter each channel (3 x 3), project (1 x 1, linear); add the input if shapes match."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        """Build the block.

        Args:
            in_channels: the channels of the input.
            out_channels: the channels of the output.
            stride: the stride of the 3 x 3 convolution.
            expansion: how many times as wide as the input the 3 x 3 convolution is; 1 skips the widening.
        """
        super().__init__()
        hidden = in_channels * expansion
        widen = [] if expansion == 1 else [_conv_bn_relu(in_channels, hidden, 1)]
        self.use_res_connect = stride == 1 and in_channels == out_channels
        self.conv = nn.Sequential(
            *widen,
            _conv_bn_relu(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, out_channels, 1, bias=False),
            nn.BatchNorm2d(out_channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        out: Tensor = self.conv(x)
        return x + out if self.use_res_connect else out


class MobileNetV2(nn.Module):
    """A 3 x 3 stem, 17 inverted residuals, a 1 x 1 convolution, dropout, and a linear classifier."""

    def __init__(
        self, num_classes: int = 1000, width_mult: float = 1.0, dropout: float = 0.2, cifar: bool = False
    ) -> None:
        """Build the network.

        Args:
            num_classes: the number of outputs.
            width_mult: a factor for every layer's channels, which are rounded to a multiple of 8; the last
                convolution has at least 1,280.
            dropout: the dropout probability before the classifier.
            cifar: keep the resolution in the stem and in the first strided stage, for 32 x 32 images.
        """
        super().__init__()
        if width_mult <= 0:
            raise PofError(f"width_mult={width_mult} must be above 0: pass 0.5 for half of the channels")
        channels = _scaled(32, width_mult)
        last = _scaled(1280, max(1.0, width_mult))
        layers: list[nn.Module] = [_conv_bn_relu(3, channels, 3, stride=1 if cifar else 2)]
        for expansion, base, blocks, stride in _CIFAR_STAGES if cifar else _STAGES:
            width = _scaled(base, width_mult)
            for i in range(blocks):
                layers.append(InvertedResidual(channels, width, stride if i == 0 else 1, expansion))
                channels = width
        layers.append(_conv_bn_relu(channels, last, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, num_classes))
        _init(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, num_classes) of images (N, 3, H, W)."""
        x = F.adaptive_avg_pool2d(self.features(x), (1, 1))
        logits: Tensor = self.classifier(torch.flatten(x, 1))
        return logits


def _init(model: nn.Module) -> None:
    """Initialise as torchvision does; BatchNorm's own defaults (weight 1, bias 0) are right already."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
            nn.init.zeros_(module.bias)


def mobilenet_v2(num_classes: int = 1000, width_mult: float = 1.0) -> MobileNetV2:
    """MobileNetV2: 3,504,872 parameters with 1,000 classes at width 1."""
    return MobileNetV2(num_classes, width_mult)


def mobilenet_v2_cifar(num_classes: int = 10, width_mult: float = 1.0) -> MobileNetV2:
    """MobileNetV2 for 32 x 32 images: 2,236,682 parameters with 10 classes at width 1."""
    return MobileNetV2(num_classes, width_mult, cifar=True)
