"""Masks over the weights of a plan, for the methods that keep weights at zero while they train."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.elastic.held_zeros import zero_where
from pof.planning.pruning_plan import plan
from pof.planning.refusals import refuse_other_plan
from pof.ranking.magnitude_bits import count_zeros
from pof.ranking.ranked_weight import RankedWeight
from pof.ranking.shares import band_counts
from pof.ranking.sparsity_state import Magnitudes, pruned_state


class Masks:
    """One mask per weight tensor, True where a weight is kept. At first all weights are kept."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._plan = plan(model)
        self.weights = self._plan.parameters(model)
        self.kept = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in self.weights.items()}
        self._optimizer = optimizer

    @property
    def sparsity(self) -> float:
        """The share of weights that are not kept."""
        return sum(count_zeros(mask) for mask in self.kept.values()) / self._plan.weights

    def check_reach(self, sparsity: float, scope: str) -> None:
        """Raise now, rather than when a schedule gets there, if `scope` cannot reach `sparsity`."""
        if scope == "global":
            self._counts(self._ranked("raw"), sparsity, scope)

    @torch.no_grad()
    def choose(self, sparsity: float, scope: str = "layer", magnitudes: str = "raw") -> None:
        """Set the masks to keep the largest present magnitudes; the weights themselves are not changed.

        `scope` is "layer" to rank each weight tensor by itself, or "global" to rank all of them together. `magnitudes`
        is "raw", or "unit" to rank unit rows, as `pof.Elastic` does.
        """
        ranked = self._ranked("unit" if magnitudes == "unit" else "raw")
        for name, weight, count in zip(self.weights, ranked, self._counts(ranked, sparsity, scope), strict=True):
            self.kept[name] = weight.kept(count)

    @torch.no_grad()
    def apply(self) -> None:
        """Zero the weights that are not kept, and the optimiser's state for them."""
        for name, weight in self.weights.items():
            zero_where(self._optimizer, weight, ~self.kept[name])

    def state_dict(self) -> dict[str, Tensor]:
        """The masks, by weight name."""
        return {name: mask.clone() for name, mask in self.kept.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        refuse_other_plan(state, self.kept)
        self.kept = {name: state[name].to(mask) for name, mask in self.kept.items()}

    def _ranked(self, magnitudes: Magnitudes) -> list[RankedWeight]:
        """The present weights, ranked."""
        return [
            RankedWeight(
                self.weights[entry.name].detach(), entry.layout, magnitudes, name=entry.name, many_states=False
            )
            for entry in self._plan
        ]

    def _counts(self, ranked: list[RankedWeight], sparsity: float, scope: str) -> list[int]:
        keys = [weight.keys_across() for weight in ranked] if scope == "global" else None
        return [zeros for zeros, _ in band_counts([entry.size for entry in self._plan], keys, pruned_state(sparsity))]
