"""The thin ResNets for 32 x 32 images (CIFAR), with parameter-free shortcuts (option A).

They have three stages of 16, 32 and 64 channels; a network of depth 6n + 2 has n blocks per stage.

Reference: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pof.models.resnet import BasicBlock, kaiming_init


class PadShortcut(nn.Module):
    """Option A: keep every `stride`-th pixel, and add the new channels as zeros, half on each side."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        """Build the shortcut.

        Args:
            in_channels: the channels of the input.
            out_channels: the channels of the output, at least `in_channels`.
            stride: the step between the pixels that are kept.
        """
        super().__init__()
        extra = out_channels - in_channels
        self.front = extra // 2
        self.back = extra - self.front
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` subsampled and padded to `out_channels`."""
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.front, self.back))


class CifarResNet(nn.Module):
    """A 3 x 3 stem, three stages of basic blocks, and a linear classifier."""

    def __init__(self, blocks: int, num_classes: int = 10) -> None:
        """Build the network.

        Args:
            blocks: the number of blocks in each stage; the network is `6 * blocks + 2` layers deep.
            num_classes: the number of outputs.
        """
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(*(BasicBlock(16, 16) for _ in range(blocks)))
        self.layer2 = _halving_stage(16, 32, blocks)
        self.layer3 = _halving_stage(32, 64, blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(64, num_classes)
        kaiming_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, num_classes) of images (N, 3, H, W)."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _halving_stage(in_channels: int, width: int, blocks: int) -> nn.Sequential:
    first = BasicBlock(in_channels, width, 2, PadShortcut(in_channels, width, 2))
    return nn.Sequential(first, *(BasicBlock(width, width) for _ in range(blocks - 1)))


def resnet20(num_classes: int = 10) -> CifarResNet:
    """CIFAR ResNet-20: 269,722 parameters with 10 classes."""
    return CifarResNet(3, num_classes)


def resnet32(num_classes: int = 10) -> CifarResNet:
    """CIFAR ResNet-32: 464,154 parameters with 10 classes."""
    return CifarResNet(5, num_classes)


def resnet44(num_classes: int = 10) -> CifarResNet:
    """CIFAR ResNet-44: 658,586 parameters with 10 classes."""
    return CifarResNet(7, num_classes)


def resnet56(num_classes: int = 10) -> CifarResNet:
    """CIFAR ResNet-56: 853,018 parameters with 10 classes."""
    return CifarResNet(9, num_classes)
