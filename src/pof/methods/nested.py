"""Nested training: every step also trains the network that pruning would leave, at a sparsity drawn anew each time.

    w <- update(w, g + weight * g' * m)      g: the clean pass, g': one at pruned weights; formulas in `pof.nested`

A `penalty` adds that of the paper at tr = `high`: what pruning takes is near zero then, and the statistics fit better.

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
    """`pof.Nested` for the length of a run; the weights stay dense."""

    @dataclass(frozen=True)
    class Settings(NestedSettings):
        """As in `pof.Nested`, and the weight of the paper's penalty beside it."""

        penalty: float = 0.0

        def __post_init__(self) -> None:
            NestedSettings.__post_init__(self)
            check_not_negative(self.penalty, "penalty", "0 for none")

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Dense at first, and for good."""
        values = asdict(settings)
        penalty = values.pop("penalty")
        self._optimizer = optimizer
        self._nested = Nested(model, **values, seed=span.seed)
        self._attached: Attached | None = None
        if penalty:
            self._attached = attach(model, optimizer, tr=settings.high, weight=penalty, sphere=False)

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """As it was pruned in training."""
        return TrainedRanking.of_scope(settings.scope)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """The clean pass, and one at pruned weights; the gradients are the sum."""
        return self._nested.two_passes(step, run_pass, loss_scale(self._optimizer))

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """The weights are dense; take the penalty off."""
        if self._attached is not None:
            self._attached.remove()

    def figures(self) -> dict[str, float]:
        """The loss of the last second pass."""
        pruned_loss = self._nested.pruned_loss
        return {} if pruned_loss is None else {"pruned_loss": float(pruned_loss)}

    def state_dict(self) -> dict[str, Any]:
        """Those of teacher and penalty; otherwise a step depends on nothing but the weights and its number."""
        teacher = {name: value for name, value in self._nested.state_dict().items() if name != "step"}
        return {**({} if self._attached is None else self._attached.state_dict()), **teacher}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._nested.load_state_dict({"step": 0, **{key: state[key] for key in ("teacher",) if key in state}})
        if self._attached is not None:
            self._attached.load_state_dict({name: value for name, value in state.items() if name != "teacher"})
