"""What a training method is: the loop calls these few functions and knows nothing else of it."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice, check_whole
from pof.elastic.distillation import RunPass
from pof.elastic.second_pass import step_generator
from pof.ranking.sparsity_state import Magnitudes, Scope


@dataclass(frozen=True)
class Span:
    """How long the training is, and what its random numbers start from."""

    steps: int
    steps_per_epoch: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self.steps, "steps", "the number of optimiser steps")
        check_whole(self.steps_per_epoch, "steps_per_epoch", "the number of optimiser steps of an epoch")

    def generator(self, step: int) -> torch.Generator:
        """Random numbers that depend on the seed and `step` alone: all ranks and resumed runs draw the same."""
        return step_generator(self.seed, step)


@dataclass(frozen=True)
class TrainedRanking:
    """How to rank the weights of a network that a method has trained, when it is pruned afterwards."""

    scope: Scope = "layer"
    magnitudes: Magnitudes = "raw"

    @classmethod
    def of_scope(cls, scope: str) -> "TrainedRanking":
        """Raw magnitudes in this scope."""
        check_choice(scope, "scope", ("layer", "global"))
        return cls("global" if scope == "global" else "layer")


class Method(Protocol):
    """A way to train. It is made once per run, before the first step, and sees every optimiser step.

    A class of this protocol is made with `(model, optimizer, settings, span)`, names its settings, a frozen dataclass,
    as `Settings`, and says in `ranking(settings)` how its networks are pruned afterwards.
    """

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Called once per step: leave its gradients in `.grad`, by one or more calls of `run_pass`; return the loss."""

    def after_step(self, step: int) -> None:
        """Called when the optimiser has made `step` (0 is the first)."""

    def finish(self) -> None:
        """Called once after the last step: leave the weights as they are to be saved."""

    def figures(self) -> dict[str, float]:
        """What to show beside the loss, such as the sparsity or the mean cosine."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside model and optimiser: tensors, numbers and None, nested in dicts."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""


class MethodClass(Protocol):
    """The class of a method."""

    Settings: type[Any]

    @staticmethod
    def ranking(settings: Any) -> TrainedRanking:
        """How to rank the weights of what was trained with `settings`."""

    def __call__(self, model: nn.Module, optimizer: Optimizer, settings: Any, span: Span) -> Method:
        """Make the method for one run."""
