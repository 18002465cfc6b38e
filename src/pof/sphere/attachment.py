"""The paper's training method, added to any loop from outside.

The penalty's gradient is added before each optimiser step; the rows return to their sphere after it.
"""

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer

from pof.errors import PofError
from pof.planning.pruning_plan import plan
from pof.sphere.optimizer_hooks import after_step, before_step, innermost, refuse_maximizer, refuse_stranger, trained_by
from pof.sphere.penalty import Penalty
from pof.sphere.row_sphere import Sphere

_ATTACHED: WeakKeyDictionary[Optimizer, set[int]] = WeakKeyDictionary()
"""The ids of the weights that each optimiser already trains with the penalty."""


class Attached:
    """What `pof.attach` put on an optimiser: read it for logging, save its state, `remove()` it."""

    def __init__(self, optimizer: Optimizer, penalty: Penalty, sphere: Sphere | None) -> None:
        self.penalty = penalty
        self.sphere = sphere
        self.step = 0
        self.value: float | Tensor = 0.0
        """The penalty at the last step, as it was added to the loss."""
        self._optimizer = optimizer
        self._handles = [before_step(optimizer, self._add_gradient), after_step(optimizer, self._count)]
        if sphere is not None:
            self._handles.append(sphere.attach(optimizer))

    def __repr__(self) -> str:
        return f"Attached(step {self.step}, tr {self.penalty.tr(self.step):.3g}, penalty {float(self.value):.4g})"

    def remove(self) -> None:
        """Remove the hooks; the model stays as it is. Do so before you fine-tune a pruned model."""
        for handle in self._handles:
            handle.remove()
        _ATTACHED[innermost(self._optimizer)] -= {id(weight) for weight in self.penalty.weights.values()}

    def state_dict(self) -> dict[str, Any]:
        """Return the step, the sphere's norms and the penalty's masks, for a checkpoint."""
        sphere = None if self.sphere is None else self.sphere.state_dict()
        return {"step": self.step, "penalty": self.penalty.state_dict(), "sphere": sphere}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        if (self.sphere is None) != (state["sphere"] is None):
            kept = "without" if state["sphere"] is None else "with"
            raise PofError(f"this state comes from training {kept} the sphere: attach with the same settings")
        if self.sphere is not None:
            self.sphere.load_state_dict(state["sphere"])
        self.penalty.load_state_dict(state["penalty"])
        self.step = int(state["step"])

    def _add_gradient(self, scale: Tensor | float) -> Tensor:
        # Checked at each step: weights may have been frozen, unfrozen or added to the optimiser since.
        trained = trained_by(self._optimizer, self.penalty.weights)
        self.value = self.penalty.add_gradient(self.step, trained, scale)
        return self.value

    def _count(self) -> None:
        self.step += 1


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    tr: float | tuple[float, float] = (0.9, 0.7),
    steps: int | None = None,
    weight: float = 0.1,
    refresh: int = 1,
    sphere: bool = True,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
) -> Attached:
    """Train with the penalty and on the sphere from the next step of `optimizer` on; the loop stays as it is.

    The penalty's gradient is added to the loss's gradients just before each step, after they were accumulated, averaged
    over ranks and unscaled. This is the same as adding `penalty(step)` to the loss, unless gradients are clipped:
    clipping sees only the loss's own gradients.

    Args:
        model: the module that `optimizer` trains; neither it nor its keys are changed.
        optimizer: any torch optimiser, bare or in accelerate's or Lightning's wrapper.
        tr: as in `Penalty`.
        steps: as in `Penalty`: the optimiser steps of the whole training.
        weight: as in `Penalty`.
        refresh: as in `Penalty`.
        sphere: False leaves the rows' norms free.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.

    Example:
        >>> import torch
        >>> model = nn.Linear(8, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> attached = attach(model, optimizer, tr=(0.9, 0.7), steps=2)
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     model(torch.ones(1, 8)).sum().backward()
        ...     optimizer.step()
        >>> attached.step
        2
    """
    chosen = plan(model, include=include, exclude=exclude)
    refuse_stranger(optimizer, chosen.parameters(model))
    refuse_maximizer(optimizer)
    taken = _ATTACHED.setdefault(innermost(optimizer), set())
    ids = {id(weight) for weight in chosen.parameters(model).values()}
    if taken & ids:
        raise PofError("pof is attached to this optimizer already: first call remove() on what attach returned")
    penalty = Penalty(model, tr=tr, steps=steps, weight=weight, refresh=refresh, plan=chosen)
    attached = Attached(optimizer, penalty, Sphere(model, plan=chosen) if sphere else None)
    taken |= ids
    return attached
