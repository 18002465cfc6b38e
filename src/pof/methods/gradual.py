"""Gradual pruning: the sparsity rises along a cubic, then stays where it is.

    s_t = s_f + (s_i - s_f) * (1 - (t - t0) / span)^3        every few steps t from t0 to t0 + span
    at each of them:  m = the largest (1 - s_t) * n magnitudes of each layer, or of all layers;  w <- w * m
    after each step:  w and its momentum are set back to zero where m is zero

s_i, s_f: the initial and the final sparsity. A weight that is zero ranks lowest, so pruned weights stay pruned. With
`distill`, a share of the loss is the divergence of the outputs from those of the network before step 0.

Reference: M. Zhu and S. Gupta, To Prune, or Not to Prune: Exploring the Efficacy of Pruning for Model Compression,
2017.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice, check_whole
from pof.elastic.distillation import DenseTeacher, RunPass, check_teaching
from pof.methods.masks import Masks
from pof.methods.protocol import Span, TrainedRanking
from pof.methods.schedule import check_rise, check_shares, cubic, is_due, step_at


class Gradual:
    """Masks that only lose weights."""

    @dataclass(frozen=True)
    class Settings:
        """The final and the initial sparsity, when it rises (shares of the run), the scope, and the distillation."""

        sparsity: float = 0.8
        initial: float = 0.0
        begin: float = 0.0
        end: float = 0.75
        every: int = 16
        scope: str = "layer"
        distill: float = 0.0
        temperature: float = 1.0

        def __post_init__(self) -> None:
            check_rise(self.initial, self.sparsity)
            check_shares(begin=self.begin, end=self.end)
            check_whole(self.every, "every", "the steps between two prunings")
            check_choice(self.scope, "scope", ("layer", "global"))
            check_teaching(self.distill, self.temperature)

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Prepare the masks and the teacher; the first masks keep every weight."""
        self._teacher = DenseTeacher(model, settings.distill, settings.temperature)
        self._masks = Masks(model, optimizer)
        self._masks.check_reach(settings.sparsity, settings.scope)
        self._settings = settings
        self._first, self._last = step_at(settings.begin, span.steps), step_at(settings.end, span.steps)

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """The network is ranked as in training."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Prune if it is time, then run one pass, which learns from the teacher if there is one."""
        settings = self._settings
        if is_due(step, self._first, self._last, settings.every):
            sparsity = cubic(step, self._first, self._last, settings.initial, settings.sparsity)
            self._masks.choose(sparsity, settings.scope)
            self._masks.apply()
        return self._teacher.taught(run_pass)

    def after_step(self, step: int) -> None:
        """Hold the zeros."""
        self._masks.apply()

    def finish(self) -> None:
        """Nothing to do: the weights are already pruned."""

    def figures(self) -> dict[str, float]:
        """The sparsity of the masks."""
        return {"sparsity": self._masks.sparsity}

    def state_dict(self) -> dict[str, Any]:
        """The masks, and the teacher if there is one."""
        return {"masks": self._masks.state_dict(), **self._teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._masks.load_state_dict(state["masks"])
        self._teacher.load_state_dict(state)
