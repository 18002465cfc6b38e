"""Plain training: the baseline that every other method is compared with."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.elastic.distillation import RunPass
from pof.methods.protocol import Span, TrainedRanking


class Dense:
    """Minimises the loss, and nothing else."""

    @dataclass(frozen=True)
    class Settings:
        """There are no settings."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Nothing to prepare: the arguments are those of every method, and none is needed."""

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """Each layer is ranked by itself."""
        return TrainedRanking()

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run one pass."""
        return run_pass()

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""

    def figures(self) -> dict[str, float]:
        """There are none."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
