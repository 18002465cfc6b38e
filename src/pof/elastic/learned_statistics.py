"""BatchNorm statistics of a state that learn from the dense network, on a few unlabelled inputs.

Estimated statistics make the inputs of each layer look as they should, channel by channel. At high sparsities that is
not the best that scales and shifts can do for the outputs. So they learn by gradients, with all weights fixed: with the
estimated mean M and variance V, the layer

    gamma * (x - M) / sqrt(V + eps) + beta     becomes     gamma * e^u * (x - M) / sqrt(V + eps) + beta + t * |gamma|

where u and t learn from the outputs of the dense network and of its blocks. What they have learnt is written as the
statistics of that state, so that neither the model nor the format of files changes:

    V' + eps = (V + eps) / e^(2u),      M' = M - t * sign(gamma) * sqrt(V' + eps)
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from pof.elastic.batch_statistics import norm_layers, read_statistics, run_batch, write_statistics
from pof.elastic.block_outputs import BlockOutputs
from pof.elastic.half_precision import autocast, half_precision_is_faster
from pof.elastic.image_views import ImageViews
from pof.elastic.output_distance import output_distance

RATE = 0.003
"""The size of Adam's steps."""
WARM_UP = 10
ASIDE = 5
"""One batch of so many is set aside, to see whether inputs that are new come nearer too."""

Report = Callable[[float, float], None]
"""Told after each step: the share of the time that is over, and the distance of the outputs."""


def learn_statistics(
    model: nn.Module,
    dense: nn.Module,
    planned: Iterable[str],
    batches: Sequence[Any],
    seconds: float,
    report: Report | None = None,
) -> bool:
    """Let the statistics of `model`, which is in some state, learn for `seconds`; return whether that helped.

    If the outputs for batches that were set aside are no nearer afterwards, the statistics stay as they are.

    Args:
        model: a module in evaluation mode, whose statistics were estimated.
        dense: a copy of it in its dense state.
        planned: the names of the weights that are pruned.
        batches: inputs, as in `Elastic.calibrate`.
        seconds: the time to take.
        report: told how far it is.
    """
    aside = batches[::ASIDE] if len(batches) > 1 else batches
    used = [batch for number, batch in enumerate(batches) if number % ASIDE] or list(batches)
    half = half_precision_is_faster(dense, used[0])
    trial = copy.deepcopy(model).requires_grad_(False)
    learner = _Learner(trial, dense, BlockOutputs(trial, dense, planned), half)
    if not learner.has_norms:
        return False
    learner.run(used, seconds, report)
    before, kept = learner.distance(model, aside), read_statistics(norm_layers(model))
    learner.write()
    write_statistics(norm_layers(model), read_statistics(norm_layers(trial)))
    if learner.distance(model, aside) < before:
        return True
    write_statistics(norm_layers(model), kept)
    return False


class _Affine:
    """The factor and the shift of one layer that learn."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.log_factor = torch.zeros_like(layer.running_var).float().requires_grad_()
        self.shift = torch.zeros_like(layer.running_var).float().requires_grad_()
        self._weight, self._bias = layer._parameters["weight"], layer._parameters["bias"]

    def enter(self, *_: object) -> None:
        """Let the layer run with them."""
        weight = torch.ones_like(self.shift) if self._weight is None else self._weight.float()
        bias = self.shift * weight.abs() if self._bias is None else self._bias.float() + self.shift * weight.abs()
        dtype = self.layer.running_mean.dtype
        self.layer._parameters["weight"] = (weight * self.log_factor.exp()).to(dtype)
        self.layer._parameters["bias"] = bias.to(dtype)

    def leave(self, *_: object) -> None:
        """Give the layer its own parameters back."""
        self.layer._parameters["weight"], self.layer._parameters["bias"] = self._weight, self._bias

    @torch.no_grad()
    def write(self) -> None:
        """Write what was learnt as statistics."""
        layer, eps = self.layer, self.layer.eps
        spread = layer.running_var.double() + eps
        # A variance cannot be negative, so some factors have a limit.
        learnt = (spread / (2 * self.log_factor.double()).exp()).clamp(min=eps)
        sign = 1.0 if self._weight is None else self._weight.double().sign()
        layer.running_mean.copy_(layer.running_mean.double() - self.shift.double() * sign * learnt.sqrt())
        layer.running_var.copy_(learnt - eps)


class _Learner:
    """Learns the factors and shifts of all layers of `model` from `dense`."""

    def __init__(self, model: nn.Module, dense: nn.Module, blocks: BlockOutputs, half: bool) -> None:
        self._model, self._dense, self._blocks, self._half = model, dense, blocks, half
        self._parts = [_Affine(m) for m in model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None]

    @property
    def has_norms(self) -> bool:
        """Whether there is anything that can learn."""
        return bool(self._parts)

    def run(self, batches: Sequence[Any], seconds: float, report: Report | None) -> None:
        """Learn for so long."""
        free = [tensor for part in self._parts for tensor in (part.log_factor, part.shift)]
        optimizer = torch.optim.Adam(free, lr=RATE, betas=(0.9, 0.99))
        views, generator = ImageViews(self._works), torch.Generator().manual_seed(0)
        began, step, order = time.monotonic(), 0, list[int]()
        with self._learning():
            while (over := (time.monotonic() - began) / max(seconds, 1e-9)) < 1.0:
                if step % len(batches) == 0:
                    order = torch.randperm(len(batches), generator=generator).tolist()
                batch = views.of(batches[order[step % len(batches)]], generator)
                distance = self._gradients(batch, optimizer)
                optimizer.param_groups[0]["lr"] = (
                    RATE * min(1.0, (step + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * over))
                )
                if all(bool(tensor.grad.isfinite().all()) for tensor in free if tensor.grad is not None):
                    optimizer.step()
                step += 1
                if report is not None:
                    report(over, distance)

    def write(self) -> None:
        """Write what was learnt as statistics of the model that learns."""
        for part in self._parts:
            part.write()

    @torch.no_grad()
    def distance(self, model: nn.Module, batches: Sequence[Any]) -> float:
        """How far the outputs of `model` are from the dense ones."""
        found = 0.0
        for batch in batches:
            with autocast(model, self._half):
                found += float(output_distance(run_batch(model, batch), run_batch(self._dense, batch)))
        return found

    def _gradients(self, batch: Any, optimizer: torch.optim.Optimizer) -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad(), autocast(self._dense, self._half), self._blocks.of_teacher():
            lesson = run_batch(self._dense, batch)
        with torch.enable_grad(), autocast(self._model, self._half), self._blocks.of_model():
            distance, inner = output_distance(run_batch(self._model, batch), lesson), self._blocks.distance()
            (distance if inner is None else distance + inner).backward()
        return float(distance.detach())

    @contextmanager
    def _learning(self) -> Iterator[None]:
        hooks = [part.layer.register_forward_pre_hook(part.enter) for part in self._parts]
        hooks += [part.layer.register_forward_hook(part.leave, always_call=True) for part in self._parts]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @torch.no_grad()
    def _works(self, batch: Any) -> bool:
        """Whether the network takes images of this size."""
        try:
            run_batch(self._dense, batch)
        except Exception:  # whatever a network raises for images that are not of its size
            return False
        return True
