"""Compression-aware minimisation (CrAM+): a dense network that can be pruned to many sparsities without retraining.

    g  = gradient of the loss at w                                  the clean pass
    w' = w + rho * g                                                uphill, all parameters; not normalised
    m  = the largest (1 - s) * n magnitudes of w',  s drawn afresh from [low, high] at each step
    g' = gradient of the loss at w' * m                             the second pass, on the same batch
    w <- update(w, g + g' * m)

BatchNorm statistics are those of the clean pass. The second pass does not affect the random numbers of later steps, and
dropout, if there is any, is the same in both passes.

Reference: A. Peste et al., CrAM: A Compression-Aware Minimizer, 2023.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice, check_not_negative
from pof.elastic.distillation import RunPass
from pof.elastic.pruned_pass import PrunedPass
from pof.elastic.second_pass import loss_scale, random_states, second_pass
from pof.errors import PofError
from pof.methods.protocol import Span, TrainedRanking
from pof.planning.wrappers import unwrap
from pof.ranking.sparsity import check_sparsity


class Cram:
    """Runs two passes per step; the weights stay dense."""

    @dataclass(frozen=True)
    class Settings:
        """How far uphill to go, the range of sparsities, and whether layers are ranked one by one or together."""

        rho: float = 0.2
        low: float = 0.3
        high: float = 0.9
        scope: str = "global"

        def __post_init__(self) -> None:
            check_not_negative(self.rho, "rho", "0.2 suits CIFAR-10")
            if check_sparsity(self.low, "low") > check_sparsity(self.high, "high"):
                raise PofError(f"low={self.low:g} must not exceed high={self.high:g}: swap them")
            check_choice(self.scope, "scope", ("layer", "global"))

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Prepare the second pass; the weights stay dense."""
        self._pruned = PrunedPass(model, scope=self.ranking(settings).scope, masked=True)
        self._pruned.check_reach(settings.high)
        self._model, self._optimizer = unwrap(model), optimizer
        self._settings, self._span = settings, span
        self._pruned_loss: Tensor | None = None

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """The network is ranked as in training."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run the clean pass and one at pruned weights uphill; their gradients are added."""
        random = random_states(self._model)
        loss = run_pass()
        uphill = second_pass(self._model, random, self._settings.rho / loss_scale(self._optimizer))
        with uphill, self._pruned.at(self._model, self._draw(step)):
            self._pruned_loss = run_pass()
        return loss

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do: the weights are dense."""

    def figures(self) -> dict[str, float]:
        """The loss of the last second pass."""
        return {} if self._pruned_loss is None else {"pruned_loss": float(self._pruned_loss)}

    def state_dict(self) -> dict[str, Any]:
        """Empty: a step depends only on the weights and its number."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""

    def _draw(self, step: int) -> float:
        share = float(torch.rand((), generator=self._span.generator(step), dtype=torch.float64))
        return self._settings.low + (self._settings.high - self._settings.low) * share
