"""A small convnet for the 8 x 8 digits: four convolutions with BatchNorm, then one linear layer."""

from collections import OrderedDict

from torch import nn

WIDTHS = (32, 64, 64, 64)


def digits_convnet(num_classes: int = 10) -> nn.Sequential:
    """The network of `pof demo` and the digits recipes: it has 92,800 prunable weights, and trains in seconds.

    Args:
        num_classes: the number of outputs.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels = 1
    for number, width in enumerate(WIDTHS, start=1):
        layers[f"conv{number}"] = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        layers[f"bn{number}"] = nn.BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU()
        if number == 2:
            layers["pool"] = nn.MaxPool2d(2)
        channels = width
    layers["average"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Linear(channels, num_classes)
    return nn.Sequential(layers)
