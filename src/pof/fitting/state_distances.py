"""How far the states of a network that is fitted are from the network as it came, on a few inputs."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pof.elastic.batch_statistics import run_batch
from pof.elastic.half_precision import autocast
from pof.elastic.live_model import LiveModel
from pof.elastic.output_distance import blind_distance, output_distance, output_tensors
from pof.errors import PofError
from pof.planning.pruning_plan import Plan
from pof.ranking.sparsity_state import DENSE, Scope, pruned_state


class StateDistances:
    """Distances of the outputs of `model` from those that it has when this object is made.

    Args:
        model: a module in evaluation mode; whatever weights it has later are measured.
        plan: its weights that are pruned.
        scope: how they are ranked.
        batches: the inputs to measure with.
        half: whether to run in bfloat16.

    Raises:
        PofError: the outputs are not finite.
    """

    def __init__(self, model: nn.Module, plan: Plan, scope: Scope, batches: Sequence[Any], half: bool) -> None:
        self._model, self._plan, self._scope = model, plan, scope
        self._batches, self._half = batches, half
        self._lessons = [self._outputs(batch) for batch in batches]
        for number, lesson in enumerate(self._lessons):
            if not all(bool(torch.isfinite(tensor).all()) for tensor in output_tensors(lesson).values()):
                raise PofError(f"batch {number} gives outputs with NaN or inf: look for NaN or inf in the inputs")

    @property
    def of_blind(self) -> float:
        """The distance of a network that gives the mean output for every input."""
        return blind_distance(self._lessons)

    def now(self) -> float:
        """The distance of the outputs as the model is now."""
        pairs = zip(self._batches, self._lessons, strict=True)
        found = [float(output_distance(self._outputs(batch), lesson)) for batch, lesson in pairs]
        return sum(found) / len(found)

    @torch.no_grad()
    def at(self, sparsities: Sequence[float]) -> tuple[float, ...]:
        """The distances at `sparsities`, each with statistics of its own."""
        live = LiveModel(self._model, self._plan, self._scope, "raw")
        with autocast(self._model, self._half):
            dense = live.dense_estimate(self._batches)
        found = []
        try:
            for sparsity in sparsities:
                live.go(pruned_state(sparsity))
                with autocast(self._model, self._half):
                    live.calibrate(self._batches, dense)
                found.append(self.now())
        finally:
            live.go(DENSE)
        return tuple(found)

    @torch.no_grad()
    def _outputs(self, batch: Any) -> Any:
        with autocast(self._model, self._half):
            return run_batch(self._model, batch)
