"""Networks of torchvision, timm and transformers with random weights, and inputs for them.

Small variants at small resolutions, so that all of them take minutes. The weights are those that the libraries draw.
Only what they start at zero (last norms, heads, layer scales) is drawn anew: it would silence whole branches, and
training changes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

SILENT = 1e-3
"""Norms and layer scales whose weights are all below this start as good as silent."""
BATCH = 4
"""How many inputs give BatchNorm its statistics."""


@dataclass(frozen=True)
class Network:
    """How a network is built, and what it takes."""

    library: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Any] | tuple[Any, ...]]
    """The inputs for a batch of this size: by name, or in order."""
    training_inputs: Callable[[int], tuple[Any, ...]] | None = None
    """What it takes in training mode, if that is something else."""
    refused: bool = False
    """Whether it cannot be compiled by its nature, as detectors whose sizes depend on the data."""


def images(size: int, channels: int = 3, frames: int = 0) -> Callable[[int], tuple[Tensor, ...]]:
    """Inputs of one batch of images or, with `frames`, of videos."""
    shape = (channels, frames, size, size) if frames else (channels, size, size)
    return lambda batch: (torch.randn(batch, *shape),)


def call(model: nn.Module, inputs: dict[str, Any] | tuple[Any, ...]) -> Any:
    """The outputs of `model`, called as its users call it."""
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def tensors_of(output: Any, prefix: str = "") -> dict[str, Tensor]:
    """The floating-point tensors of an output by name, those of caches included."""
    if isinstance(output, Tensor):
        return {prefix or "output": output} if output.is_floating_point() else {}
    if isinstance(output, dict):
        parts = output.items()
    elif isinstance(output, (tuple, list)):
        parts = enumerate(output)
    elif hasattr(output, "__dict__"):
        parts = vars(output).items()
    else:
        return {}
    found: dict[str, Tensor] = {}
    for name, part in parts:
        found |= tensors_of(part, f"{prefix}.{name}" if prefix else str(name))
    return found


@torch.no_grad()
def built(network: Network) -> nn.Module:
    """The network in evaluation mode: nothing in it is silent, and BatchNorm has statistics of random inputs."""
    torch.manual_seed(0)
    model = network.build().eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or parameter.numel() == 0 or parameter.abs().max() > SILENT:
            continue
        if parameter.dim() > 1:
            parameter.normal_(std=0.02)
        else:
            parameter.uniform_(0.5, 1.5)
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    if norms and not network.refused:
        call(model, network.inputs(BATCH))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.eval()
        norm.momentum = momentum
    return model


def all_networks() -> dict[str, Network]:
    """Every network of the benchmark by name."""
    from transformers_networks import TRANSFORMERS
    from vision_networks import VISION

    return {**VISION, **TRANSFORMERS}
