"""What the tests of `pof.Nested` have in common."""

from typing import Any

import torch
from torch import Tensor, nn

HALF: dict[str, Any] = {"low": 0.5, "high": 0.5, "bands": 0.0}
"""Always the same second pass, so that a batch can be split without changing it."""


def network() -> nn.Sequential:
    """A layer that is left out (the first convolution), and two that are pruned."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4 * 4, 5)
    )


def batches(count: int = 3, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 1, 8, 8), torch.randint(5, (size,))) for _ in range(count)]


def gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
