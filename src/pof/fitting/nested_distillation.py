"""Nested distillation: the network as it came teaches the fitted one at every sparsity, on a few inputs.

Each step runs the batch at pruned weights, with a sparsity up to `high`, and in a share of the steps at dense
ones. Both learn from the outputs of the teacher and of its blocks (`block_outputs`), never from labels. BatchNorm runs
with paired statistics (`paired_norms`).
"""

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pof.elastic.batch_statistics import run_batch
from pof.elastic.block_outputs import BlockOutputs
from pof.elastic.half_precision import autocast
from pof.elastic.image_views import ImageViews
from pof.elastic.output_distance import EASE, output_distance
from pof.elastic.pruned_pass import PrunedPass
from pof.elastic.second_pass import gradients_are_finite, step_generator
from pof.fitting.paired_norms import PairedNorms
from pof.ranking.sparsity_state import Scope

SMOOTH = 0.9
"""How slowly the size of a tensor's gradients, which its steps are divided by, may fall."""
LEAST_SIZE = 1e-3
"""The least size that a tensor counts as having: biases may begin at zero."""

Report = Callable[[float, float], None]
"""Told after each step: the share of the time that is over, and the distance at pruned weights."""


@dataclass(frozen=True)
class DistillationSettings:
    """How the fitted network learns."""

    high: float = 0.92
    low: float = 0.55
    """The lowest sparsity that is drawn, as a share of the highest."""
    skew: float = 2.0
    """1 draws all sparsities alike; more draws high ones more often, which have more to learn."""
    rate: float = 0.001
    """The size of a step without momentum, in parts of each tensor's own size."""
    clean: float = 0.25
    """The share of the steps that have a dense pass too."""
    blocks: float = 3.0
    """What the distances of the blocks count, beside that of the outputs."""


def distil(
    model: nn.Module,
    teacher: nn.Module,
    batches: Iterable[Any],
    seconds: float,
    *,
    scope: Scope = "global",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    settings: DistillationSettings | None = None,
    half: bool = False,
    report: Report | None = None,
) -> int:
    """Train `model` for `seconds`, in bfloat16 if `half`; return the number of steps. Its statistics stay."""
    chosen = settings or DistillationSettings()
    norms, passes = PairedNorms(model, teacher), _quiet_pass(model, scope, include, exclude)
    trained = [p for p in model.parameters() if p.is_floating_point() and p.numel()]
    wanted = [p.requires_grad for p in trained]
    for parameter in trained:
        parameter.requires_grad_(True)
    # One scale per tensor, not per weight as in Adam: the small weights of a layer must not move as far as the large.
    optimizer = torch.optim.SGD([{"params": [p], "lr": 0.0} for p in trained], momentum=0.9, nesterov=True)
    sizes, slopes = [max(_size(p), LEAST_SIZE) for p in trained], [0.0] * len(trained)
    views, blocks = ImageViews(lambda batch: _works(teacher, batch)), BlockOutputs(model, teacher, passes.names)

    def learn(batch: Any, lesson: Any) -> float:
        """Add the gradients of one pass; return the distance of the outputs."""
        with blocks.of_model(), autocast(model, half):
            distance, inner = output_distance(run_batch(model, batch), lesson), blocks.distance()
        (_eased(distance) if inner is None else _eased(distance) + chosen.blocks * _eased(inner)).backward()
        return float(distance.detach())

    began, step, stream = time.monotonic(), 0, _endless(batches)
    try:
        while (over := (time.monotonic() - began) / max(seconds, 1e-9)) < 1.0:
            generator = step_generator(0, step)
            where = float(torch.rand((), generator=generator))
            batch = views.of(next(stream), generator)
            sparsity = chosen.high * (1 - (1 - chosen.low) * where**chosen.skew)
            optimizer.zero_grad(set_to_none=True)
            with norms.watching(), blocks.of_teacher(), torch.no_grad(), autocast(model, half):
                lesson = run_batch(teacher, batch)
            if int((step + 1) * chosen.clean) > int(step * chosen.clean):
                with norms.paired():
                    learn(batch, lesson)
            with norms.paired(), passes.at(model, sparsity):
                distance = learn(batch, lesson)
            if gradients_are_finite([p.grad for p in trained if p.grad is not None]):
                rate = chosen.rate * min(1.0, (step + 1) / 10) * (0.5 + 0.5 * math.cos(math.pi * over))
                for i, (group, parameter) in enumerate(zip(optimizer.param_groups, trained, strict=True)):
                    slope = 0.0 if parameter.grad is None else _size(parameter.grad)
                    slopes[i] = max(slope, SMOOTH * slopes[i] + (1 - SMOOTH) * slope)
                    group["lr"] = rate * sizes[i] / slopes[i] if slopes[i] > 0 else 0.0
                optimizer.step()
            step += 1
            if report is not None:
                report(over, distance)
    finally:
        for parameter, before in zip(trained, wanted, strict=True):
            parameter.requires_grad_(before)
            parameter.grad = None
    return step


@torch.no_grad()
def _works(network: nn.Module, batch: Any) -> bool:
    """Whether the network takes a batch of that size."""
    try:
        run_batch(network, batch)
    except Exception:  # whatever a network raises for images that are not of its size
        return False
    return True


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    """The batches again and again: a sequence in a new order each time, anything else as it comes."""
    epoch = 0
    while True:
        if isinstance(batches, Sequence):
            yield from (batches[i] for i in torch.randperm(len(batches), generator=step_generator(1, epoch)).tolist())
        else:
            yield from batches
        epoch += 1


def _quiet_pass(model: nn.Module, scope: Scope, include: Iterable[str], exclude: Iterable[str]) -> PrunedPass:
    """A pass over the same weights as the plan's, which has warned of what it leaves out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return PrunedPass(model, scope=scope, include=include, exclude=exclude, masked=True)


def _size(values: Tensor) -> float:
    """The root mean square."""
    return float(values.detach().float().square().mean().sqrt())


def _eased(distance: Tensor) -> Tensor:
    """The distance in parts of itself, so that a sparsity that cannot be served does not spoil the others."""
    return distance / (distance.detach() + EASE)
