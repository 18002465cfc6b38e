"""Plain training: the baseline that every other method is compared with."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.elastic.distillation import RunPass
from pof.methods.protocol import Span, TrainedRanking


class Dense:
    """Gradient descent on the loss, nothing else."""

    @dataclass(frozen=True)
    class Settings:
        """There are none."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """The same arguments as every method; none is needed."""

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """Each layer by itself."""
        return TrainedRanking()

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """One pass."""
        return run_pass()

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Nothing to do."""

    def figures(self) -> dict[str, float]:
        """None."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Empty."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take back."""
