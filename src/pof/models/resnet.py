"""ResNets for 224 x 224 images, with torchvision's state_dict names and shapes.

A checkpoint of torchvision's `resnet18`, `resnet34` or `resnet50` loads unchanged. The bottleneck has its stride in
the 3 x 3 convolution (known as v1.5), as in torchvision.

Reference: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition", CVPR 2016.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def _conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def _conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a shortcut around them: `relu(f(x) + downsample(x))`."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        """Build the block.

        Args:
            in_channels: the channels of the input.
            width: the channels of both convolutions, and of the output.
            stride: the stride of the first convolution.
            downsample: makes the input fit the output; None if it already does.
        """
        super().__init__()
        self.conv1 = _conv3x3(in_channels, width, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _conv3x3(width, width)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        out: Tensor = self.relu(residual + shortcut)
        return out


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions with a shortcut around them; the output has `4 * width` channels."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int = 1, downsample: nn.Module | None = None) -> None:
        """Build the block.

        Args:
            in_channels: the channels of the input.
            width: the channels of the 3 x 3 convolution.
            stride: the stride of the 3 x 3 convolution.
            downsample: makes the input fit the output; None if it already does.
        """
        super().__init__()
        self.conv1 = _conv1x1(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv1x1(width, width * self.expansion)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        shortcut = x if self.downsample is None else self.downsample(x)
        residual = self.relu(self.bn1(self.conv1(x)))
        residual = self.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        out: Tensor = self.relu(residual + shortcut)
        return out


def kaiming_init(model: nn.Module) -> None:
    """Initialise every convolution of `model` in place with Kaiming's normal distribution over the fan-out.

    BatchNorm (weight 1, bias 0) and linear layers keep torch's own defaults, as in torchvision.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResNet(nn.Module):
    """A 7 x 7 stem, four stages of blocks, and a linear classifier."""

    def __init__(
        self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], num_classes: int = 1000
    ) -> None:
        """Build the network.

        Args:
            block: the kind of block.
            depths: the number of blocks in each of the four stages.
            num_classes: the number of outputs.
        """
        super().__init__()
        first, second, third, fourth = depths
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _stage(block, 64, 64, first, stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, second, stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, third, stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, fourth, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        kaiming_init(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (N, num_classes) of images (N, 3, H, W)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck], in_channels: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    out_channels = width * block.expansion
    downsample = None
    if stride != 1 or in_channels != out_channels:
        downsample = nn.Sequential(_conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))
    first = block(in_channels, width, stride, downsample)
    return nn.Sequential(first, *(block(out_channels, width) for _ in range(depth - 1)))


def resnet18(num_classes: int = 1000) -> ResNet:
    """ResNet-18: 11,689,512 parameters with 1,000 classes."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes)


def resnet34(num_classes: int = 1000) -> ResNet:
    """ResNet-34: 21,797,672 parameters with 1,000 classes."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes)


def resnet50(num_classes: int = 1000) -> ResNet:
    """ResNet-50 v1.5: 25,557,032 parameters with 1,000 classes."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes)
