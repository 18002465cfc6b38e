"""What a training method is: the loop calls these few functions and knows nothing else about it."""

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
    """How long the training is, and the seed of its random numbers."""

    steps: int
    steps_per_epoch: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self.steps, "steps", "the number of optimiser steps")
        check_whole(self.steps_per_epoch, "steps_per_epoch", "the number of optimiser steps in an epoch")

    def generator(self, step: int) -> torch.Generator:
        """A generator that depends only on the seed and `step`: all ranks and resumed runs draw the same numbers."""
        return step_generator(self.seed, step)


@dataclass(frozen=True)
class TrainedRanking:
    """How to rank the weights of a network when it is pruned after a method has trained it."""

    scope: Scope = "layer"
    magnitudes: Magnitudes = "raw"

    @classmethod
    def of_scope(cls, scope: str) -> "TrainedRanking":
        """The ranking of raw magnitudes in `scope`."""
        check_choice(scope, "scope", ("layer", "global"))
        return cls("global" if scope == "global" else "layer")


class Method(Protocol):
    """A way to train. It is made once per run, before the first step, and sees every optimiser step.

    Its class follows `MethodClass`: it is called with `(model, optimizer, settings, span)`, has its settings, a frozen
    dataclass, as `Settings`, and says in `ranking(settings)` how to rank its networks when they are pruned afterwards.
    """

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Called once per step: call `run_pass` one or more times, leave the gradients in `.grad`, return the loss."""

    def after_step(self, step: int) -> None:
        """Called after the optimiser has made `step` (0 is the first)."""

    def finish(self) -> None:
        """Called once after the last step: leave the weights as they should be saved."""

    def figures(self) -> dict[str, float]:
        """Numbers to show beside the loss, such as the sparsity or the mean cosine."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs besides the model and optimiser: tensors, numbers and None, nested in dicts."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""


class MethodClass(Protocol):
    """The class of a method."""

    Settings: type[Any]

    @staticmethod
    def ranking(settings: Any) -> TrainedRanking:
        """How to rank the weights of a network that was trained with `settings`."""

    def __call__(self, model: nn.Module, optimizer: Optimizer, settings: Any, span: Span) -> Method:
        """Make the method for one run."""
