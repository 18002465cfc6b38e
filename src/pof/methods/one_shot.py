"""One-shot pruning: prune once by magnitude, then train the weights that are left.

    step 0:  m = the largest (1 - s) * n magnitudes of each layer;  w <- w * m
    then:    w <- w - update, with w and its momentum held at zero where m is zero

With `distill`, a share of the loss is the divergence of the outputs from those of the network before step 0. With unit
rows, and started from a network that was trained with the penalty, this is the paper's slow recovery.

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
        """The sparsity to prune to, how weights are ranked (as in `pof.Elastic`), and the distillation."""

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
        """Prune the network; a copy made before that is the teacher, if `distill` asks for one."""
        self._teacher = DenseTeacher(model, settings.distill, settings.temperature)
        self._masks = Masks(model, optimizer)
        self._masks.choose(settings.sparsity, settings.scope, settings.magnitudes)
        self._masks.apply()

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """The scope is that of the pruning; the weights left are ranked raw, even if unit rows were pruned."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run one pass, which learns from the teacher if there is one."""
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
