"""The on-the-fly penalty: pushes each weight towards its own pruning mask while it trains (Eq. 2 and 3)."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pof.checks import check_not_negative, check_whole
from pof.errors import PofError
from pof.planning.pruning_plan import Plan
from pof.planning.pruning_plan import plan as make_plan
from pof.planning.refusals import refuse_other_plan
from pof.ranking.cuts import find_cut, keep_mask, zero_smallest
from pof.ranking.reused_buffers import ReusedBuffers
from pof.ranking.row_norms import row_norms, unit_rows
from pof.ranking.sparsity import check_sparsity, prune_count
from pof.sphere.compiled_rows import add_penalty_fast, can_be_fast
from pof.sphere.compiler_guard import uncompiled
from pof.sphere.hypersign import Cosines, add_ltr_gradient, cosines, ltr


class Penalty:
    """weight * sum over layers of L_tr(W, tr): add `penalty(step)` to the loss.

    Args:
        model: any module; it is not touched.
        tr: target sparsity of the masks; a pair moves linearly from the first to the second over `steps`.
        steps: optimiser steps over which `tr` moves; needed for a pair.
        weight: lambda of Eq. 2.
        refresh: the number of steps between two updates of the masks.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        plan: a ready-made plan, instead of globs.

    Example:
        >>> model = torch.nn.Linear(8, 4)
        >>> penalty = Penalty(model, tr=(0.9, 0.7), steps=100)
        >>> loss = model(torch.ones(1, 8)).sum() + penalty(step=0)
        >>> loss.backward()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        tr: float | tuple[float, float] = (0.9, 0.7),
        steps: int | None = None,
        weight: float = 0.1,
        refresh: int = 1,
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        plan: Plan | None = None,
    ) -> None:
        self._tr = _checked_tr(tr)
        self._steps = _checked_steps(steps, self._tr)
        self.weight = check_not_negative(weight, "weight", "0.1 suits small networks, the paper uses 1 to 2")
        self.refresh = check_whole(refresh, "refresh", "a number of steps")
        chosen = plan or make_plan(model, include=include, exclude=exclude)
        self._entries = {entry.name: entry for entry in chosen}
        self.weights = chosen.parameters(model)
        """The parameters that take part, by name."""
        self._kept: dict[str, Tensor] = {}
        self._found_at: int | None = None
        self._buffers = ReusedBuffers()
        self._last: dict[str, tuple[Tensor, Tensor]] = {}

    def tr(self, step: int) -> float:
        """Return the target sparsity at `step`."""
        first, last = self._tr
        return first + (last - first) * min(max(step, 0) / self._steps, 1.0)

    @uncompiled
    def __call__(self, step: int) -> Tensor:
        """Return the penalty at `step`, a scalar that can be differentiated."""
        self._begin(step)
        return self.weight * self._total(self._differentiable(name, step) for name in self.weights)

    @uncompiled
    @torch.no_grad()
    def add_gradient(self, step: int, weights: Iterable[str] | None = None, scale: Tensor | float = 1.0) -> Tensor:
        """Add `scale` times the penalty's gradient to the `.grad` of the named weights, or of all, except frozen ones.

        It adds what `(scale * penalty(step)).backward()` would, in closed form. Returns the penalty of those weights.
        """
        self._begin(step)
        names = self.weights if weights is None else weights
        return self.weight * self._total(self._with_gradient(name, step, scale) for name in names)

    def layers(self) -> dict[str, dict[str, float]]:
        """Return, for logging, the mean cosine and the L_tr per row of each weight, as of the last call."""
        return {
            name: {"mean_cosine": 1.0 + float(shortfall / rows), "term_per_row": float(shortfall / rows) ** 2}
            for name, (shortfall, rows) in self._last.items()
        }

    @property
    def mean_cosine(self) -> float:
        """The mean over layers of their mean cosine, as of the last call."""
        rows = self.layers().values()
        return sum(row["mean_cosine"] for row in rows) / len(rows) if rows else float("nan")

    def state_dict(self) -> dict[str, Any]:
        """Return the masks in use, and the step at which they were found; with `refresh` 1 there are none."""
        return {"found_at": self._found_at, "kept": {name: mask.clone() for name, mask in self._kept.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        if state["kept"]:
            refuse_other_plan(state["kept"], {name: self._rows(name) for name in self.weights})
        self._found_at = state["found_at"]
        self._kept = {name: mask.to(self.weights[name].device) for name, mask in state["kept"].items()}

    def _rows(self, name: str) -> Tensor:
        return self._entries[name].rows(self.weights[name])[0]

    def _begin(self, step: int) -> None:
        age = None if self._found_at is None else step - self._found_at
        if age is None or not 0 <= age < self.refresh:
            self._kept, self._found_at = {}, step

    def _kept_units(self, name: str, units: Tensor, step: int) -> Tensor:
        """Return the unit rows, with zeros where the mask at `step` prunes."""
        kept = self._buffers.like(units, "kept")
        if name in self._kept:
            return torch.mul(units, self._kept[name], out=kept)
        shape = self._entries[name].shape
        flat = units.view(shape)
        cut = find_cut(flat, prune_count(self._entries[name].weights, self.tr(step)), self._buffers)
        if self.refresh > 1:
            self._kept[name] = keep_mask(flat, cut).view(units.shape)
        zero_smallest(flat, cut, out=kept.view(shape))
        return kept

    def _differentiable(self, name: str, step: int) -> Tensor:
        rows, dims = self._entries[name].rows(self.weights[name])
        with torch.no_grad():
            signs = self._kept_units(name, unit_rows(rows, row_norms(rows, dims)), step).sign()
        # A row of zeros has no direction; its norm is replaced before the root, or its gradient would be 0/0.
        squares = rows.to(signs.dtype).square().sum(dims, keepdim=True)
        units = rows / torch.where(squares > 0, squares, torch.inf).sqrt()
        cos = cosines(units * signs, signs, dims)
        return self._noted(name, cos)

    def _with_gradient(self, name: str, step: int, scale: Tensor | float) -> Tensor:
        entry, weight = self._entries[name], self.weights[name]
        rows, dims = entry.rows(weight)
        if self.refresh == 1 and can_be_fast(weight, entry.layout):
            grad = self._grad_in_rows(weight)
            prune = prune_count(entry.weights, self.tr(step))
            fast = add_penalty_fast(weight, prune, self.weight * float(scale), grad, self._buffers)
            if fast is not None:
                shortfall, count = fast.unbind()
                self._last[name] = (shortfall, count)
                return shortfall.square() / count
        lengths = row_norms(rows, dims)
        units = unit_rows(rows, lengths, out=self._buffers.like(rows, "units", lengths.dtype))
        kept = self._kept_units(name, units, step)
        signs = torch.sign(kept, out=self._buffers.like(kept, "signs"))
        cos = cosines(kept.mul_(signs), signs, dims)
        if weight.requires_grad:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            grad = entry.rows(weight.grad)[0]
            add_ltr_gradient(grad, units, lengths, signs, cos, self.weight * scale)
        return self._noted(name, cos)

    def _grad_in_rows(self, weight: nn.Parameter) -> Tensor | None:
        """Return the gradient to add to, in the memory layout of `weight`; None for a frozen weight."""
        if not weight.requires_grad:
            return None
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        elif weight.grad.stride() != weight.stride() or weight.grad.dtype is not weight.dtype:
            weight.grad = torch.empty_like(weight).copy_(weight.grad)
        return weight.grad

    def _noted(self, name: str, cos: Cosines) -> Tensor:
        self._last[name] = (cos.shortfall.detach(), cos.rows)
        return ltr(cos)

    def _total(self, terms: Iterable[Tensor]) -> Tensor:
        found = list(terms)
        return torch.stack([term.to(found[0].device) for term in found]).sum() if found else torch.zeros(())


def _checked_tr(tr: float | tuple[float, float]) -> tuple[float, float]:
    ends = tuple(tr) if isinstance(tr, (tuple, list)) else (tr, tr)
    if len(ends) != 2:
        raise PofError(f"tr={tr!r} must be one number or a pair (first, last), such as (0.9, 0.7)")
    first, last = (check_sparsity(end, "tr") for end in ends)
    if first == 0.0 or last == 0.0:
        raise PofError(f"tr={tr!r} must be in (0, 1): the paper uses (0.9, 0.7)")
    return first, last


def _checked_steps(steps: int | None, tr: tuple[float, float]) -> int:
    if steps is None and tr[0] == tr[1]:
        return 1
    return check_whole(steps, "steps", "the number of optimiser steps over which tr moves, epochs * len(loader)")
