"""Nested training: every step also trains the network that pruning would leave, at a new random sparsity each time.

    w <- update(w, g + weight * g' * m)      g: the clean pass, g': one at pruned weights; formulas in `pof.nested`

`penalty` adds the paper's penalty at tr = `high`: pruned weights are then near zero, and the statistics fit better.

Reference: none; see `pof.nested`.
"""

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_not_negative
from pof.elastic.distillation import RunPass
from pof.elastic.second_pass import loss_scale
from pof.methods.protocol import Span, TrainedRanking
from pof.nested import Nested, NestedSettings
from pof.sphere.attachment import Attached, attach


class NestedMethod:
    """Uses `pof.Nested` for the length of a run; the weights stay dense."""

    @dataclass(frozen=True)
    class Settings(NestedSettings):
        """The settings of `pof.Nested`, and the weight of the paper's penalty."""

        penalty: float = 0.0

        def __post_init__(self) -> None:
            NestedSettings.__post_init__(self)
            check_not_negative(self.penalty, "penalty", "0 for none")

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Prepare the second pass, and attach the penalty if there is one; the weights stay dense."""
        values = asdict(settings)
        penalty = values.pop("penalty")
        self._optimizer = optimizer
        self._nested = Nested(model, **values, seed=span.seed)
        self._attached: Attached | None = None
        if penalty:
            self._attached = attach(model, optimizer, tr=settings.high, weight=penalty, sphere=False)

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """The network is ranked as in training."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run the clean pass and one at pruned weights; their gradients are added."""
        return self._nested.two_passes(step, run_pass, loss_scale(self._optimizer))

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """Remove the penalty's hooks; the weights are dense."""
        if self._attached is not None:
            self._attached.remove()

    def figures(self) -> dict[str, float]:
        """The loss of the last second pass."""
        pruned_loss = self._nested.pruned_loss
        return {} if pruned_loss is None else {"pruned_loss": float(pruned_loss)}

    def state_dict(self) -> dict[str, Any]:
        """The teacher and the penalty, if any; otherwise a step depends only on the weights and its number."""
        teacher = {name: value for name, value in self._nested.state_dict().items() if name != "step"}
        return {**({} if self._attached is None else self._attached.state_dict()), **teacher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._nested.load_state_dict({"step": 0, **{key: state[key] for key in ("teacher",) if key in state}})
        if self._attached is not None:
            self._attached.load_state_dict({name: value for name, value in state.items() if name != "teacher"})
