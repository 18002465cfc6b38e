"""Rows on a common scale, so that magnitudes can be compared across a network.

BatchNorm behind a layer makes the scale of its rows arbitrary: a row times f computes the same if the statistics of its
channel are scaled along. In networks whose BatchNorm was folded away and put back, or whose layers have few inputs
(depthwise kernels), magnitudes then say little. Balancing brings such rows, or whole layers, nearer to one root mean
square, that of the weights that cannot be rescaled. What the network computes does not change, but for rounding.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pof.elastic.batch_statistics import run_batch
from pof.fitting.layer_inputs import RefittableLayer


@dataclass(frozen=True)
class NormalisedLayer:
    """A layer whose outputs go straight into a BatchNorm."""

    layer: RefittableLayer
    norm: Any

    @torch.no_grad()
    def scale_rows(self, factors: Tensor) -> None:
        """Multiply the rows by `factors`, and let the norm take the factors out again."""
        norm, weight = self.norm, self.layer.weight
        weight.mul_(factors.view(-1, *[1] * (weight.dim() - 1)).to(weight.dtype))
        bias = getattr(self.layer.module, "bias", None)
        if bias is not None:
            bias.mul_(factors.to(bias.dtype))
        spread = (norm.running_var.double() + norm.eps) * factors.double().square()
        # A variance cannot be negative: what eps is too large for goes into the norm's weight.
        variance = (spread - norm.eps).clamp(min=0)
        norm.running_mean.mul_(factors.to(norm.running_mean.dtype))
        norm.running_var.copy_(variance)
        norm.weight.mul_(((variance + norm.eps) / spread).sqrt().to(norm.weight.dtype))


def normalised_layers(model: nn.Module, layers: Iterable[RefittableLayer], batch: Any) -> list[NormalisedLayer]:
    """Those of `layers` whose output is, as the same tensor, the input of a BatchNorm; each of both runs once."""
    outputs: dict[int, tuple[RefittableLayer, Tensor]] = {}
    found: list[NormalisedLayer] = []
    calls: dict[nn.Module, int] = {}

    def made(layer: RefittableLayer, output: object) -> None:
        calls[layer.module] = calls.get(layer.module, 0) + 1
        if isinstance(output, Tensor):
            outputs[id(output)] = layer, output

    def taken(norm: Any, args: tuple[Any, ...]) -> None:
        calls[norm] = calls.get(norm, 0) + 1
        if args and id(args[0]) in outputs and norm.running_mean is not None and norm.weight is not None:
            found.append(NormalisedLayer(outputs[id(args[0])][0], norm))

    hooks = [
        layer.module.register_forward_hook(lambda _, args, output, layer=layer: made(layer, output)) for layer in layers
    ]
    hooks += [m.register_forward_pre_hook(taken) for m in model.modules() if isinstance(m, _BatchNorm)]
    try:
        with torch.no_grad():
            run_batch(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return [pair for pair in found if calls[pair.layer.module] == 1 and calls[pair.norm] == 1]


@dataclass(frozen=True)
class Balance:
    """A way of balancing.

    A row of size s gets the factor (S / s) ** evened * (N / n) ** spared: sizes are root mean squares, n is the number
    of weights in its layer, S and N are the size and the mean number of the weights that cannot be rescaled.
    """

    evened: float
    """How far sizes are brought together: 0 for not at all, 1 for one size."""
    spared: float
    """How much later layers of few weights are pruned: each of their weights makes up more of an output."""
    by_rows: bool = True
    """Whether each row has a size of its own; else all rows of a layer have the layer's."""


def balancing_factors(pairs: Sequence[NormalisedLayer], others: Sequence[Tensor], way: Balance) -> Mapping[str, Tensor]:
    """The factor of each row, by the name of its weight.

    Args:
        pairs: the layers to balance.
        others: the weights that cannot be rescaled; those of the pairs themselves if there are none.
        way: how to balance.
    """
    weights = others or [pair.layer.weight for pair in pairs]
    count = sum(w.numel() for w in weights)
    common = (sum(float(w.detach().double().square().sum()) for w in weights) / count) ** 0.5
    found = {}
    for pair in pairs:
        weight = pair.layer.weight.detach().double()
        squares = weight.flatten(1).square().mean(1)
        sizes = squares.sqrt() if way.by_rows else squares.mean().sqrt().expand_as(squares)
        spared = (count / len(weights) / weight.numel()) ** way.spared
        factors = (common / sizes.clamp(min=1e-30)) ** way.evened * spared
        found[pair.layer.name] = torch.where(sizes > 0, factors, torch.ones_like(factors))
    return found
