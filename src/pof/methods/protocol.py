"""What a training method is: the loop calls these few functions and knows nothing else of it."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_whole


class RunPass(Protocol):
    """Runs the present batch at the model's present weights."""

    def __call__(self, distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
        """One forward and backward pass; returns the loss, detached.

        It is the whole batch of the step, over all ranks and all parts in which its gradients are accumulated. Like
        `backward()` it adds to `.grad`, which is empty when `Method.gradients` is called.

        Args:
            distill: the share of the loss that is not that of the labels but the Kullback-Leibler divergence of the
                outputs from those of `teacher`.
            teacher: whose outputs are learnt, in a forward pass of its own; None: the first pass of this step.
            temperature: what both outputs are divided by before they are compared; the divergence is multiplied by its
                square, so that gradients stay about as large.
        """


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
        mixed = np.random.SeedSequence((self.seed % 2**64, step)).generate_state(1)
        return torch.Generator().manual_seed(int(mixed[0]))


class Method(Protocol):
    """A way to train. It is made once a run, before the first step, and sees every optimiser step.

    A class of this protocol is made with `(model, optimizer, settings, span)` and names its settings, a frozen
    dataclass, as `Settings`.
    """

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Called once a step: leave its gradients in `.grad`, by one or more calls of `run_pass`; return the loss."""

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

    def __call__(self, model: nn.Module, optimizer: Optimizer, settings: Any, span: Span) -> Method:
        """Make the method for one run."""
