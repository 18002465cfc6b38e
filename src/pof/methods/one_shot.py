"""One-shot pruning: prune once by magnitude, then train what is left.

    step 0:  m = the largest (1 - s) * n magnitudes of each layer;  w <- w * m
    then:    w <- w - update, with w and its momentum held at zero where m is zero

With `distill` a share of the loss is the divergence of the outputs from those of the network as it was before step 0.
Started from a network that was trained with the penalty, and with unit rows ranked, it is the paper's slow recovery.

Reference: Han et al., Learning both Weights and Connections for Efficient Neural Networks, 2015.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice
from pof.elastic.distillation import DenseTeacher, RunPass, check_teaching
from pof.methods.masks import Masks
from pof.methods.protocol import Span, TrainedRanking
from pof.ranking.sparsity import check_sparsity


class OneShot:
    """Fixed masks from the first step on."""

    @dataclass(frozen=True)
    class Settings:
        """The sparsity to prune to, how weights are ranked (as in `pof.Elastic`), and what is learnt from the start."""

        sparsity: float = 0.8
        scope: str = "layer"
        magnitudes: str = "raw"
        distill: float = 0.0
        temperature: float = 1.0

        def __post_init__(self) -> None:
            check_sparsity(self.sparsity)
            check_choice(self.scope, "scope", ("layer", "global"))
            check_choice(self.magnitudes, "magnitudes", ("raw", "unit"))
            check_teaching(self.distill, self.temperature)

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Prune; what there was before is the teacher, if one is asked for."""
        self._teacher = DenseTeacher(model, settings.distill, settings.temperature)
        self._masks = Masks(model, optimizer)
        self._masks.choose(settings.sparsity, settings.scope, settings.magnitudes)
        self._masks.apply()

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """As it was pruned before training; what is left of unit rows is ranked raw."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """One pass, and the teacher's forward one."""
        return self._teacher.taught(run_pass)

    def after_step(self, step: int) -> None:
        """Hold the zeros."""
        self._masks.apply()

    def finish(self) -> None:
        """The zeros are there already."""

    def figures(self) -> dict[str, float]:
        """The sparsity."""
        return {"sparsity": self._masks.sparsity}

    def state_dict(self) -> dict[str, Any]:
        """The masks and the teacher."""
        return {"masks": self._masks.state_dict(), **self._teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._masks.load_state_dict(state["masks"])
        self._teacher.load_state_dict(state)
