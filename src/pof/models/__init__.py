"""The networks of the paper's tables, in plain torch; `MODELS` finds a constructor by its name."""

from collections.abc import Callable

from torch import nn

from pof.models.cifar_resnet import CifarResNet, resnet20, resnet32, resnet44, resnet56
from pof.models.digit_networks import digits_convnet
from pof.models.mobilenets import MobileNetV2, mobilenet_v2, mobilenet_v2_cifar
from pof.models.resnet import ResNet, resnet18, resnet34, resnet50

MODELS: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "mobilenet_v2_cifar": mobilenet_v2_cifar,
    "resnet20": resnet20,
    "resnet32": resnet32,
    "resnet44": resnet44,
    "resnet56": resnet56,
    "digits_convnet": digits_convnet,
}

__all__ = [
    "MODELS",
    "CifarResNet",
    "MobileNetV2",
    "ResNet",
    "digits_convnet",
    "mobilenet_v2",
    "mobilenet_v2_cifar",
    "resnet18",
    "resnet20",
    "resnet32",
    "resnet34",
    "resnet44",
    "resnet50",
    "resnet56",
]
