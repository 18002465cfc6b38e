"""BatchNorm statistics of a state, estimated in pairs: the dense network on the same batches is the measure.

Estimating replaces the statistics that training left, and those are rarely what a few batches give: on a CIFAR-10
ResNet-20 plain estimation costs the *dense* network 2 points. So both networks are estimated on the same batches, and
the statistics that the dense network came with (index 0) move by the difference between state s and dense d:

    mean = mean_0 + (mean_s - mean_d) * r        r = sqrt((var_0 + eps) / (var_d + eps))
    var + eps = (var_s + eps) * r^2

The sampling noise cancels, and the dense state keeps its statistics exactly. The more a layer changes, the less its old
statistics tell, so the result is blended with the plain estimate: its share is c / (1 + c), where the change c is the
root mean square of the shifts, in standard deviations, plus half that of the logarithms of the variances' ratios.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from pof.elastic.batch_statistics import BUFFERS, Statistics, is_silent
from pof.errors import PofError


def paired_statistics(
    layers: Sequence[_NormBase], kept: Statistics, dense: Statistics, state: Statistics
) -> Statistics:
    """The statistics of a state of `layers`.

    Args:
        layers: the normalisation layers, for their eps and for which buffers they have.
        kept: the statistics that the dense network came with.
        dense: those estimated with the dense weights.
        state: those estimated with the weights of the state, on the same batches.
    """
    found, position = [], 0
    for layer in layers:
        count = sum(getattr(layer, name) is not None for name in BUFFERS)
        mine = slice(position, position + count)
        if not all(bool(torch.isfinite(part).all()) for part in kept[mine]) or bool((kept[mine][1] < 0).any()):
            raise PofError(
                "the BatchNorm statistics that the model came with hold NaN, inf or negative variances: "
                "calibrate(batches, paired=False) replaces them"
            )
        found += [*moved(kept[mine], dense[mine], state[mine], layer.eps), *kept[mine][2:]]
        position += count
    return found


def moved(
    kept: Sequence[Tensor], dense: Sequence[Tensor], state: Sequence[Tensor], eps: float
) -> tuple[Tensor, Tensor]:
    """The mean and the variance of one layer in a state; each argument begins with a mean and a variance."""
    mean0, mean_d, mean_s = (part[0].double() for part in (kept, dense, state))
    spread0, spread_d, spread_s = (part[1].double() + eps for part in (kept, dense, state))
    ratio = (spread0 / spread_d).sqrt()
    silent, woken = is_silent(dense[1], state[1]), is_silent(state[1], dense[1])
    plain = change(mean_s - mean_d, spread_s / spread_d, spread_d, ~(silent | woken))
    share = plain / (1 + plain)
    mean = (mean0 + (mean_s - mean_d) * ratio).lerp(mean_s, share)
    spread = (spread_s * ratio.square()).lerp(spread_s, share)
    # A constant channel keeps its variance; its mean is that of the batches, so that it comes out as the bias.
    mean, spread = torch.where(silent, mean_s, mean), torch.where(silent, spread0, spread)
    # A channel that was constant on these batches gives no ratio to go by.
    mean, spread = torch.where(woken & ~silent, mean_s, mean), torch.where(woken & ~silent, spread_s, spread)
    return mean.to(kept[0].dtype), (spread - eps).clamp(min=0).to(kept[1].dtype)


def change(shift: Tensor, ratio: Tensor, spread: Tensor, heard: Tensor) -> Tensor:
    """How much the inputs of a layer have changed, from shifts and ratios of variances of the channels `heard`."""
    if not bool(heard.any()):
        return torch.zeros((), dtype=shift.dtype, device=shift.device)
    shifts = (shift.square() / spread)[heard].mean().sqrt()
    return shifts + ratio[heard].log().square().mean().sqrt() / 2
