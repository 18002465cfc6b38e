"""Nested training: every step also trains the network that pruning would leave, at a sparsity drawn anew each time.

    g  = gradient of L(w)                                         the clean pass
    w' = w + rho * g                                              uphill, as in CrAM; rho = 0 leaves it out
    m  = the largest (1 - s) * n magnitudes of w',  s drawn from [low, high], nearer to high where skew > 1
    g' = gradient of (1 - d) * L(w' * m) + d * T^2 * KL(the clean pass || this one),   same batch, outputs / T
    w <- update(w, g + weight * g' * m)

In a share `bands` of the steps the second pass is at the recovered network instead: w' from `low` to s is filled with
alpha * sign, and g' is masked below `low` only. BatchNorm statistics are those of the clean pass. With a `teacher` both
passes have the loss of g', learnt from the network as it was at first, and a share `clean` of the steps a clean pass.
A `penalty` adds that of the paper at tr = `high`: what pruning takes is near zero then, and the statistics fit better.

Reference: none; it joins CrAM's step (A. Peste et al., 2023) with distillation from the dense network within the step.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice, check_not_negative, check_share
from pof.errors import PofError
from pof.magnitude import check_sparsity
from pof.methods.masks import Masks
from pof.methods.protocol import RunPass, Span
from pof.methods.second_pass import loss_scale, random_states, second_pass
from pof.methods.teacher import DenseTeacher, check_teaching
from pof.on_the_fly import Attached, attach
from pof.planning import unwrap
from pof.pruned_pass import pruned
from pof.states import Scope


class Nested:
    """Two passes a step; the weights stay dense."""

    @dataclass(frozen=True)
    class Settings:
        """The range of sparsities and how they are drawn, and what the second pass learns from."""

        low: float = 0.5
        high: float = 0.9
        skew: float = 2.0
        distill: float = 0.5
        temperature: float = 1.0
        rho: float = 0.0
        bands: float = 0.1
        scope: str = "layer"
        penalty: float = 0.0
        weight: float = 1.0
        teacher: bool = False
        clean: float = 1.0

        def __post_init__(self) -> None:
            if check_sparsity(self.low, "low") > check_sparsity(self.high, "high"):
                raise PofError(f"low={self.low:g} must not exceed high={self.high:g}: swap them")
            check_not_negative(self.skew, "skew", "1 draws evenly, 2 nearer to high")
            check_teaching(self.distill, self.temperature)
            check_share(self.clean, "clean", "the share of steps that have a clean pass too")
            if self.clean < 1 and not self.teacher:
                raise PofError(
                    f"clean={self.clean:g} needs teacher=true: without a clean pass nobody is there to learn from"
                )
            check_share(self.bands, "bands", "the share of steps with a recovered second pass")
            check_not_negative(self.penalty, "penalty", "0 for none")
            check_not_negative(
                self.weight, "weight", "that of the second pass's gradient, 1 for as much as the first's"
            )
            check_not_negative(self.rho, "rho", "0 for no step uphill")
            check_choice(self.scope, "scope", ("layer", "global"))

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Dense at first, and for good."""
        self._model, self._optimizer = unwrap(model), optimizer
        self._settings, self._span = settings, span
        self._scope: Scope = "global" if settings.scope == "global" else "layer"
        Masks(model, optimizer).check_reach(settings.high, settings.scope)
        self._pruned_loss: Tensor | None = None
        self._teacher = DenseTeacher(model, settings.distill if settings.teacher else 0.0, settings.temperature)
        self._attached: Attached | None = None
        if settings.penalty:
            self._attached = attach(model, optimizer, tr=settings.high, weight=settings.penalty, sphere=False)

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """The clean pass, and one at pruned weights; the gradients are the sum."""
        settings, (sparsity, recover_from) = self._settings, self._draw(step)
        random = random_states(self._model)
        loss = None
        if int((step + 1) * settings.clean) > int(step * settings.clean):
            loss = self._teacher.taught(run_pass)
        with (
            second_pass(self._model, random, settings.rho / loss_scale(self._optimizer), settings.weight),
            pruned(self._model, sparsity, recover_from=recover_from, scope=self._scope, masked=True),
        ):
            self._pruned_loss = run_pass(settings.distill, self._teacher.network, settings.temperature)
        return self._pruned_loss if loss is None else loss

    def after_step(self, step: int) -> None:
        """Nothing to do."""

    def finish(self) -> None:
        """The weights are dense; take the penalty off."""
        if self._attached is not None:
            self._attached.remove()

    def figures(self) -> dict[str, float]:
        """The loss of the last second pass."""
        return {} if self._pruned_loss is None else {"pruned_loss": float(self._pruned_loss)}

    def state_dict(self) -> dict[str, Any]:
        """Those of teacher and penalty; otherwise a step depends on nothing but the weights and its number."""
        return {**({} if self._attached is None else self._attached.state_dict()), **self._teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self._teacher.load_state_dict(state)
        if self._attached is not None:
            self._attached.load_state_dict({name: value for name, value in state.items() if name != "teacher"})

    def _draw(self, step: int) -> tuple[float, float | None]:
        """The sparsity of this step's second pass, and where its band begins, if it has one."""
        settings = self._settings
        where, which = torch.rand(2, generator=self._span.generator(step), dtype=torch.float64).tolist()
        sparsity = settings.high - (settings.high - settings.low) * where**settings.skew
        return sparsity, settings.low if which < settings.bands and sparsity > settings.low else None
