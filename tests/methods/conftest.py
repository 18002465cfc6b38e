"""One tiny layer, and the loop of the protocol around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pof.methods import METHODS, Method, Span


class Tiny:
    """A linear layer of a few weights, and a loss whose gradient at the weights w is `gradient(w)`.

    `seen` are the weights at which each pass was taken, `distilled` the share that was asked to be distilled, and
    `teachers` from what, `temperatures` how evenly.
    """

    def __init__(self, weights: list[float], gradient: Callable[[Tensor], Tensor], **sgd: float) -> None:
        self.model = nn.Linear(len(weights), 1, bias=False)
        self.model.weight.data = torch.tensor([weights])
        self.optimizer = SGD(self.model.parameters(), **{"lr": 0.5, **sgd})
        self.seen: list[list[float]] = []
        self.distilled: list[float] = []
        self.teachers: list[nn.Module | None] = []
        self.temperatures: list[float] = []
        self._gradient = gradient

    @property
    def weights(self) -> list[float]:
        return self.model.weight.detach()[0].tolist()

    @property
    def gradient(self) -> list[float]:
        assert self.model.weight.grad is not None
        return self.model.weight.grad[0].tolist()

    @property
    def momentum(self) -> list[float]:
        return self.optimizer.state[self.model.weight]["momentum_buffer"][0].tolist()

    def run_pass(self, distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
        self.seen.append(self.weights)
        self.teachers.append(teacher)
        self.temperatures.append(temperature)
        self.distilled.append(distill)
        loss = (self.model.weight * self._gradient(self.model.weight.detach())).sum()
        loss.backward()
        return loss.detach()

    def method(self, name: str, steps: int, **settings: Any) -> Method:
        kind = METHODS[name]
        made: Method = kind(self.model, self.optimizer, kind.Settings(**settings), Span(steps, steps))
        return made

    def train(self, method: Method, *steps: int) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            method.gradients(step, self.run_pass)
            self.optimizer.step()
            method.after_step(step)


MakeTiny = Callable[..., Tiny]


@pytest.fixture
def tiny() -> MakeTiny:
    """Makes a `Tiny`; without a gradient, one that is zero everywhere."""

    def make(weights: list[float], gradient: Callable[[Tensor], Tensor] = torch.zeros_like, **sgd: float) -> Tiny:
        return Tiny(weights, gradient, **sgd)

    return make
