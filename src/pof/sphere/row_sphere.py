"""The hypersphere as a constraint: every row (filter) of a weight keeps the norm that it had.

Rows are pulled back after an optimiser step; nothing in the model is wrapped or renamed. The norms are remembered from
the start, so a trained network's outputs do not change before the first step.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pof.errors import PofError
from pof.planning.pruning_plan import Plan
from pof.planning.pruning_plan import plan as make_plan
from pof.planning.refusals import refuse_other_plan
from pof.ranking.row_norms import rescale_rows, row_norms
from pof.sphere.compiled_rows import can_be_fast, rescale_rows_fast
from pof.sphere.optimizer_hooks import after_step, refuse_stranger, trained_by


class Sphere:
    """Remembers the norm of each row in the weights of a plan, and brings the rows back to it.

    Args:
        model: any module; it is not touched until `project` is called.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        plan: a ready-made plan, instead of globs.

    Example:
        >>> model = torch.nn.Linear(4, 2)
        >>> sphere = Sphere(model)
        >>> norms = model.weight.norm(dim=1)
        >>> with torch.no_grad():
        ...     _ = model.weight.mul_(3)
        >>> sphere.project()
        >>> torch.testing.assert_close(model.weight.norm(dim=1), norms)

    A row that is zero when the sphere is made has no direction yet and is left free.

    Reference: Liu et al., Deep Hyperspherical Learning, 2017.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        plan: Plan | None = None,
    ) -> None:
        chosen = plan or make_plan(model, include=include, exclude=exclude)
        self._entries = {entry.name: entry for entry in chosen}
        self._weights = chosen.parameters(model)
        self._norms = {name: self._measure(name) for name in self._entries}

    def project(self) -> None:
        """Put every row back onto its sphere, in place."""
        self._project(self._weights)

    def attach(self, optimizer: Optimizer) -> RemovableHandle:
        """Project what `optimizer` trains after each of its steps; call `remove()` on the result to stop."""
        refuse_stranger(optimizer, self._weights)
        return after_step(optimizer, lambda: self._project(trained_by(optimizer, self._weights)))

    def state_dict(self) -> dict[str, Tensor]:
        """Return the remembered norms, by weight name."""
        return {name: norms.clone() for name, norms in self._norms.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load what `state_dict` returned."""
        refuse_other_plan(state, self._norms)
        self._norms = {name: state[name].to(norms) for name, norms in self._norms.items()}

    def _measure(self, name: str) -> Tensor:
        rows, dims = self._entries[name].rows(self._weights[name].detach())
        norms = row_norms(rows, dims)
        if not bool(torch.isfinite(norms).all()):
            raise PofError(f"weight {name!r} holds NaN or inf: load finite weights first")
        return norms

    @torch.no_grad()
    def _project(self, names: Iterable[str]) -> None:
        for name in names:
            weight = self._weights[name].detach()
            rows, dims = self._entries[name].rows(weight)
            # The model may have moved to another device since.
            norms = self._norms[name] = self._norms[name].to(weight.device)
            if can_be_fast(weight, self._entries[name].layout):
                rescale_rows_fast(weight, norms)
            else:
                rescale_rows(rows, dims, norms)
