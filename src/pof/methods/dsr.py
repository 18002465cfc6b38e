"""Dynamic sparse reparameterisation: sparse from the first step on, with non-zeros that move to where they are needed.

    first step:       random masks (from scratch), or those of the largest magnitudes
    every period:     prune |w| < H in all layers; K = how many were pruned
                      regrow K weights from zero, at random positions, in proportion to each layer's remaining non-zeros
                      H <- H / 2 if K > 1.1 N_p,   H <- 2 H if K < 0.9 N_p
    after each step:  w and its momentum are set back to zero where they are not kept

N_p: how many weights to move per period. A position that was just pruned is not regrown, no layer is emptied, and the
number of kept weights over all layers together always matches the target sparsity.

Reference: H. Mostafa and X. Wang, Parameter Efficient Training of Deep Convolutional Neural Networks by Dynamic Sparse
Reparameterization, 2019.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.checks import check_choice, check_not_negative, check_whole
from pof.elastic.distillation import RunPass
from pof.errors import PofError
from pof.methods.masks import Masks
from pof.methods.moving_weights import below, count_kept, random_keys, split
from pof.methods.protocol import Span, TrainedRanking
from pof.methods.schedule import check_shares, step_at
from pof.ranking.cuts import largest
from pof.ranking.sparsity import check_sparsity, prune_count


class Dsr:
    """Masks of a fixed sparsity whose non-zeros move."""

    @dataclass(frozen=True)
    class Settings:
        """The sparsity; what share of the kept weights moves, how often, and until when (a share of the run)."""

        sparsity: float = 0.8
        period: int = 100
        moved: float = 0.1
        end: float = 0.75
        threshold: float = 1e-3
        start: str = "random"

        def __post_init__(self) -> None:
            check_sparsity(self.sparsity)
            check_whole(self.period, "period", "the steps between two moves")
            check_sparsity(self.moved, "moved")
            check_shares(end=self.end)
            if not check_not_negative(self.threshold, "threshold", "it is a magnitude, such as 1e-3"):
                raise PofError("threshold=0 would never move: pass a small magnitude, such as 1e-3")
            check_choice(self.start, "start", ("random", "magnitude"))

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        """Prepare the masks; nothing is pruned before the first step."""
        self._masks = Masks(model, optimizer)
        self._settings, self._span = settings, span
        sizes = [mask.numel() for mask in self._masks.kept.values()]
        self._non_zeros = sum(sizes) - prune_count(sum(sizes), settings.sparsity)
        if self._non_zeros < len(sizes):
            raise PofError(f"sparsity={settings.sparsity:g} leaves less than a weight for each layer: pass a lower one")
        self._threshold = settings.threshold

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        """Each layer is ranked by itself."""
        return TrainedRanking()

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        """Run one pass; before the first one, prune."""
        if step == 0:
            self._start()
            self._masks.apply()
        return run_pass()

    def after_step(self, step: int) -> None:
        """Hold the zeros, and move them if it is time."""
        self._masks.apply()
        done = step + 1
        if done % self._settings.period == 0 and done <= step_at(self._settings.end, self._span.steps):
            self._move(self._span.generator(done))

    def finish(self) -> None:
        """Nothing to do: the weights are already pruned."""

    def figures(self) -> dict[str, float]:
        """The sparsity and the threshold."""
        return {"sparsity": self._masks.sparsity, "threshold": self._threshold}

    def state_dict(self) -> dict[str, Any]:
        """The masks and the threshold."""
        return {"masks": self._masks.state_dict(), "threshold": self._threshold}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._masks.load_state_dict(state["masks"])
        self._threshold = float(state["threshold"])

    def _start(self) -> None:
        """Give each layer its share of the non-zeros, but at least one."""
        generator = self._span.generator(0)
        spare = [mask.numel() - 1 for mask in self._masks.kept.values()]
        counts = split(self._non_zeros - len(spare), spare, spare)
        for (name, weight), count in zip(self._masks.weights.items(), counts, strict=True):
            at_random = self._settings.start == "random"
            keys = random_keys(weight, generator) if at_random else weight.detach()
            self._masks.kept[name] = largest(keys, count + 1)

    @torch.no_grad()
    def _move(self, generator: torch.Generator) -> None:
        masks, before = self._masks, self._masks.kept
        room = [count_kept(~mask) for mask in before.values()]
        wanted = min(self._settings.moved * self._non_zeros, sum(room) / 1.1)
        small = {name: below(weight, before[name], self._threshold) for name, weight in masks.weights.items()}
        count = sum(count_kept(mask) for mask in small.values())
        if count > 1.1 * wanted:
            self._threshold /= 2
        elif count < 0.9 * wanted:
            self._threshold *= 2
        if count > sum(room):
            # There are fewer free positions than that; the lower threshold finds fewer weights next time.
            return
        masks.kept = {name: mask & ~small[name] for name, mask in before.items()}
        masks.apply()
        grown = split(count, [count_kept(mask) for mask in masks.kept.values()], room)
        for (name, mask), number in zip(before.items(), grown, strict=True):
            keys = random_keys(mask, generator).masked_fill(mask, 0.0)
            masks.kept[name] = masks.kept[name] | largest(keys, number)
