"""Masks over the weights of a plan, for the methods that keep weights at zero while they train."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import refuse_other_plan
from pof.hold import zero_where
from pof.magnitude import find_cut, keep_mask, prune_count, share_globally
from pof.planning import Entry, plan
from pof.rows import row_norms, unit_rows


class Masks:
    """One mask a weight, True where it is kept; all kept at first."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._plan = plan(model)
        self.weights = self._plan.parameters(model)
        self.kept = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self.weights.items()}
        self._optimizer = optimizer

    @property
    def sparsity(self) -> float:
        """The share of weights that are not kept."""
        total = sum(mask.numel() for mask in self.kept.values())
        return 1.0 - sum(int(torch.count_nonzero(mask)) for mask in self.kept.values()) / total

    def check_reach(self, sparsity: float, scope: str) -> None:
        """Refuse a sparsity that `scope` cannot reach: at once, and not when a schedule gets there."""
        if scope == "global":
            share_globally([weight.detach() for weight in self.weights.values()], sparsity)

    @torch.no_grad()
    def choose(self, sparsity: float, scope: str = "layer", magnitudes: str = "raw") -> None:
        """Keep the largest magnitudes of the weights as they are now; the weights themselves are not changed.

        `scope` is "layer" to rank each weight by itself, or "global" to rank all together; `magnitudes` is "raw", or
        "unit" to rank unit rows, as `pof.Elastic` does.
        """
        weights = [weight.detach() for weight in self.weights.values()]
        if magnitudes == "unit":
            weights = [_unit(weight, entry) for weight, entry in zip(weights, self._plan, strict=True)]
        if scope == "global":
            counts = share_globally(weights, sparsity)
        else:
            counts = [prune_count(weight.numel(), sparsity) for weight in weights]
        for name, weight, count in zip(self.weights, weights, counts, strict=True):
            self.kept[name] = keep_mask(weight, find_cut(weight, count))

    @torch.no_grad()
    def apply(self) -> None:
        """Zero what is not kept, in the weights and in the optimiser's state for them."""
        for name, weight in self.weights.items():
            zero_where(self._optimizer, weight, ~self.kept[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Masked weights inside the block, the dense ones after it, bit for bit, also on an exception.

        The gradients of a pass inside are for the dense weights, also where they are masked (straight-through).
        BatchNorm statistics that it updates stay updated.
        """
        dense = [weight.detach().clone() for weight in self.weights.values()]
        try:
            with torch.no_grad():
                for name, weight in self.weights.items():
                    weight.masked_fill_(~self.kept[name], 0.0)
            torch.clear_autocast_cache()  # which would not see writes in place
            yield
        finally:
            with torch.no_grad():
                for weight, values in zip(self.weights.values(), dense, strict=True):
                    weight.copy_(values)
            torch.clear_autocast_cache()

    def state_dict(self) -> dict[str, Tensor]:
        """The masks, by weight name."""
        return {name: mask.clone() for name, mask in self.kept.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave."""
        refuse_other_plan(state, self.kept)
        self.kept = {name: state[name].to(mask) for name, mask in self.kept.items()}


def _unit(weight: Tensor, entry: Entry) -> Tensor:
    """Unit rows, scaled to a root mean square of one so that those of different weights can be compared."""
    rows, dims = entry.rows(weight)
    norms = row_norms(rows, dims, torch.float64)
    return unit_rows(rows, norms).reshape(weight.shape) * math.sqrt(weight.numel() / norms.numel())
