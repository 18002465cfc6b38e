"""Training under `pof.attach`, and the loss form that it stands for: `loss + penalty(step)` and `sphere.project()`.

Everything runs in float64, so that the two forms agree to many digits and a mask never differs by rounding.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import pof
from tests.small_models import tanh_convnet

STEPS = 6
SETTINGS: dict[str, Any] = {"tr": (0.8, 0.4), "steps": STEPS, "weight": 0.5}
Batch = tuple[Tensor, Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def batches(count: int = STEPS) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(8, 2, 4, 4, generator=generator, dtype=torch.float64),
            torch.randint(3, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.01)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": sgd,
    "sgd foreach nesterov": lambda p: SGD(p, lr=0.2, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: SGD(p, lr=0.2, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: Adam(p, lr=0.02, weight_decay=0.01),
    "adam foreach": lambda p: Adam(p, lr=0.02, foreach=True),
    "adam fused": lambda p: Adam(p, lr=0.02, fused=True),
    "adamw": lambda p: AdamW(p, lr=0.02, weight_decay=0.1),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, centered=True),
}


def plain_steps(model: nn.Module, optimizer: Optimizer, data: Iterable[Batch]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def with_attach(make: MakeOptimizer = sgd, data: Iterable[Batch] | None = None, **settings: Any) -> nn.Sequential:
    """A model trained by a plain loop under `pof.attach`."""
    model = tanh_convnet()
    optimizer = make(model.parameters())
    pof.attach(model, optimizer, **{**SETTINGS, **settings})
    plain_steps(model, optimizer, batches() if data is None else data)
    return model


def loss_form(make: MakeOptimizer = sgd, data: Iterable[Batch] | None = None, sphere: bool = True) -> nn.Sequential:
    """A model trained by the loop that `pof.attach` stands for."""
    model = tanh_convnet()
    optimizer, penalty, norms = make(model.parameters()), pof.Penalty(model, **SETTINGS), pof.Sphere(model)
    for step, (x, y) in enumerate(batches() if data is None else data):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + penalty(step)).backward()
        optimizer.step()
        if sphere:
            norms.project()
    return model


def assert_same(left: nn.Module, right: nn.Module) -> None:
    wanted = right.state_dict()
    assert left.state_dict().keys() == wanted.keys()
    for name, value in left.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-8, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def halves(data: Iterable[Batch]) -> list[Batch]:
    return [(x[part], y[part]) for x, y in data for part in (slice(0, 4), slice(4, 8))]
