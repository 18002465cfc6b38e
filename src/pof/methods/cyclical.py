"""Cyclical pruning: gradual pruning several times over, so that the next cycle can correct mistakes of the last.

    the run is cut into equal cycles; in each, s_t rises from s_i to s_f along the cubic, then stays there
    first step of a cycle:  m = the largest (1 - s_i) * n magnitudes of each layer of the dense w, or of all layers
    later in the cycle:     m = the largest (1 - s_t) * n of w * m: within a cycle nothing comes back
    each step:              g = gradient of the loss at w * m;   w <- update(w, g), pruned weights too
    once the last cycle has reached s_f:   w <- w * m, held at zero with its momentum

s_t: the schedule of `pof.methods.schedule`; s_i, s_f: the sparsity at the beginning and the end of a cycle.

Reference: S. Srinivas et al., Cyclical Pruning for Sparse Neural Networks, 2022.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice, check_whole
from pof.elastic.distillation import RunPass
from pof.elastic.pruned_pass import PrunedPass
from pof.errors import PofError
from pof.methods.masks import Masks
from pof.methods.protocol import Span, TrainedRanking
from pof.methods.schedule import check_rise, check_shares, cubic, is_due, step_at


class Cyclical:
    """Masks that lose weights within a cycle and start afresh with the next."""

    @dataclass(frozen=True)
    class Settings:
        """The final and the initial sparsity of a cycle, the number of cycles, and for what share of one it rises."""

        sparsity: float = 0.8
        initial: float = 0.0
        cycles: int = 3
        ramp: float = 0.75
        every: int = 16
        scope: str = "layer"

        def __post_init__(self) -> None:
            check_rise(self.initial, self.sparsity)
            check_whole(self.cycles, "cycles", "the number of cycles")
            check_shares(ramp=self.ramp)
            check_whole(self.every, "every", "the steps between two prunings")
            check_choice(self.scope, "scope", ("layer", "global"))

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Prepare the masks; the first ones keep every weight."""
        if settings.cycles > span.steps:
            raise PofError(f"cycles={settings.cycles} must not exceed the {span.steps} steps of the run: ask for fewer")
        self._masks = Masks(model, optimizer)
        self._masks.check_reach(settings.sparsity, settings.scope)
        self._model, self._pruned = model, PrunedPass(model, keep_statistics=True)
        self._settings = settings
        starts = [number * span.steps // settings.cycles for number in range(settings.cycles + 1)]
        self._ramps = [(first, first + step_at(settings.ramp, end - first)) for first, end in pairwise(starts)]

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """The network is ranked as in training."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run one pass at the masked weights; the gradients go to the dense ones."""
        settings = self._settings
        first, last = max(ramp for ramp in self._ramps if ramp[0] <= step)
        if is_due(step, first, last, settings.every):
            sparsity = cubic(step, first, last, settings.initial, settings.sparsity)
            if step == first:
                self._masks.choose(sparsity, settings.scope)
            else:
                with self._pruned.masked_by(self._model, self._masks.kept):
                    self._masks.choose(sparsity, settings.scope)
        if self._is_held(step):
            self._masks.apply()
            return run_pass()
        with self._pruned.masked_by(self._model, self._masks.kept):
            return run_pass()

    def after_step(self, step: int) -> None:
        """Hold the zeros once the last cycle has reached its sparsity."""
        if self._is_held(step):
            self._masks.apply()

    def finish(self) -> None:
        """Nothing to do: the weights are already pruned."""

    def figures(self) -> dict[str, float]:
        """The sparsity of the masked weights."""
        return {"sparsity": self._masks.sparsity}

    def state_dict(self) -> dict[str, Any]:
        """The masks."""
        return {"masks": self._masks.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._masks.load_state_dict(state["masks"])

    def _is_held(self, step: int) -> bool:
        return step >= self._ramps[-1][1]
