"""Pruning on the fly, the paper's method: the penalty L_tr, with rows kept on their sphere.

    J(W) = L(W) + weight * sum over layers of L_tr(W, tr)        (Eq. 2 and 3; docs/method.md)

`tr` falls linearly over the share `anneal` of the training, then stays where it is. The weights stay dense, and can be
pruned to many sparsities afterwards.

Reference: D. Liu and X. Liu, Pruning On-the-Fly: A Recoverable Pruning Method without Fine-tuning.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_share
from pof.elastic.distillation import RunPass
from pof.errors import PofError
from pof.methods.protocol import Span, TrainedRanking
from pof.sphere.attachment import attach


class Pof:
    """Uses `pof.attach` for the length of a run."""

    @dataclass(frozen=True)
    class Settings:
        """The settings of `pof.attach`; `anneal` is the share of the run in which tr falls."""

        tr: tuple[float, float] = (0.9, 0.7)
        anneal: float = 1.0
        weight: float = 0.1
        refresh: int = 1
        sphere: bool = True

        def __post_init__(self) -> None:
            if check_share(self.anneal, "anneal", "the share of the run in which tr falls") == 0:
                raise PofError("anneal=0 leaves no time for tr to fall: to keep tr constant, pass tr=(0.7, 0.7)")

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Attach the penalty and the sphere to the optimiser."""
        self._attached = attach(
            model,
            optimizer,
            tr=settings.tr,
            steps=max(1, round(settings.anneal * span.steps)),
            weight=settings.weight,
            refresh=settings.refresh,
            sphere=settings.sphere,
        )

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """Unit rows are ranked if the network was trained on the sphere."""
        return TrainedRanking(magnitudes="unit" if settings.sphere else "raw")

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run one pass; the optimiser's step adds the penalty's gradient."""
        return run_pass()

    def after_step(self, step: int) -> None:
        """Nothing to do: the hooks have done it."""

    def finish(self) -> None:
        """Remove the hooks."""
        self._attached.remove()

    def figures(self) -> dict[str, float]:
        """The value of tr and, after the first step, the penalty and the mean cosine."""
        penalty = self._attached.penalty
        tr = {"tr": penalty.tr(self._attached.step)}
        if not penalty.layers():
            return tr
        return {"penalty": float(self._attached.value), "cosine": penalty.mean_cosine, **tr}

    def state_dict(self) -> dict[str, Any]:
        """The state of `pof.attach`."""
        return self._attached.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._attached.load_state_dict(state)
