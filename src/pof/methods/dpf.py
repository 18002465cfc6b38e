"""Dynamic pruning with feedback: the loss is that of the pruned network, but the dense weights are updated.

    every few steps:  m = the largest (1 - s_t) * n magnitudes of each layer of the dense w, or of all layers
    each step:        g = gradient of the loss at w * m;   w <- update(w, g), pruned weights too (straight-through)
    at the end:       w <- w * m

s_t: the cubic schedule of `pof.methods.schedule`. A weight that was pruned by mistake can grow, and come back when the
mask is next computed; in the last phase the mask is frozen.

Reference: T. Lin et al., Dynamic Model Pruning with Feedback, 2020.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice, check_whole
from pof.elastic.distillation import RunPass
from pof.elastic.pruned_pass import PrunedPass
from pof.methods.masks import Masks
from pof.methods.protocol import Span, TrainedRanking
from pof.methods.schedule import check_rise, check_shares, cubic, is_due, step_at


class Dpf:
    """Masks that are recomputed from the dense weights, and applied only during the pass."""

    @dataclass(frozen=True)
    class Settings:
        """The final and the initial sparsity, when it rises, and when the mask is frozen (shares of the run)."""

        sparsity: float = 0.8
        initial: float = 0.0
        begin: float = 0.0
        end: float = 0.5
        freeze: float = 0.75
        every: int = 16
        scope: str = "layer"

        def __post_init__(self) -> None:
            check_rise(self.initial, self.sparsity)
            check_shares(begin=self.begin, end=self.end, freeze=self.freeze)
            check_whole(self.every, "every", "the steps between two masks")
            check_choice(self.scope, "scope", ("layer", "global"))

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Prepare the masks; the first ones keep every weight."""
        self._masks = Masks(model, optimizer)
        self._masks.check_reach(settings.sparsity, settings.scope)
        self._model, self._pruned = model, PrunedPass(model, keep_statistics=True)
        self._settings = settings
        shares = (settings.begin, settings.end, settings.freeze)
        self._first, self._last, self._freeze = (step_at(share, span.steps) for share in shares)

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """The network is ranked as in training."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run one pass at the masked weights; the gradients go to the dense ones."""
        settings = self._settings
        if step == self._last or is_due(step, self._first, self._freeze, settings.every):
            sparsity = cubic(step, self._first, self._last, settings.initial, settings.sparsity)
            self._masks.choose(sparsity, settings.scope)
        with self._pruned.masked_by(self._model, self._masks.kept):
            return run_pass()

    def after_step(self, step: int) -> None:
        """Nothing to do: pruned weights are trained too."""

    def finish(self) -> None:
        """Prune the weights for good."""
        self._masks.apply()

    def figures(self) -> dict[str, float]:
        """The sparsity of the masked weights."""
        return {"sparsity": self._masks.sparsity}

    def state_dict(self) -> dict[str, Any]:
        """The masks."""
        return {"masks": self._masks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._masks.load_state_dict(state["masks"])
