"""Store the BatchNorm statistics of states as small, quantised differences from the dense ones. See SPEC.md."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from pof.file.statistics_stream import Differences, Norm, RealDifferences

EPSILON = 1e-5
MEAN_STEPS, VARIANCE_STEPS = 64.0, 32.0
"""The number of steps in a standard deviation, and in a doubling of the variance."""

QUIET = 2.0**-12
"""The variance, relative to the dense one, below which the steps of means hardly get any finer."""

OFTEN, SELDOM = -16384, 32768
"""A variance has at least `OFTEN` steps; below that, steps + `SELDOM` begin a number of 30 bits (`_absolute`)."""

TOLERATED = 0.125
"""How far off a mean may be, in the state's own deviations, before it is stored as such a number."""

QUARTERS = 4.0
"""The steps in a doubling of the variance, counted from `EPSILON` up, in such a number."""


def differences(dense: Mapping[str, Tensor], state: Mapping[str, Tensor], norms: Sequence[Norm]) -> Differences:
    """The differences of a state's statistics from the dense ones, in steps."""
    parts = []
    for mean, variance in norms:
        mean0, variance0 = dense[mean].double(), dense[variance].double() + EPSILON
        wanted, spread = state[mean].double(), state[variance].double() + EPSILON
        doublings = _steps(VARIANCE_STEPS * torch.log2(spread / variance0)).clamp(min=OFTEN)
        scale = _mean_scale(doublings / VARIANCE_STEPS) * variance0.sqrt()
        means = _steps(MEAN_STEPS * (wanted - mean0) / scale)
        wrong = (mean0 + means / MEAN_STEPS * scale - wanted).abs() > TOLERATED * spread.sqrt()
        quarters = (QUARTERS * torch.log2(spread / EPSILON)).round()
        high, low = _absolute(wanted, quarters)
        exactly = wrong & (quarters < 64)
        parts += [torch.where(exactly, low, means), torch.where(exactly, high, doublings)]
    found = torch.cat([part.reshape(-1) for part in parts]) if parts else torch.zeros(0)
    return found.to(torch.int16).numpy()


def _absolute(means: Tensor, quarters: Tensor) -> tuple[Tensor, Tensor]:
    """Pack 24 bits of each mean and 6 of its variance into the steps of the variance and of the mean.

    This is for channels that are almost silent in a state but loud in the dense network: no difference from the dense
    mean is fine enough for them, since BatchNorm divides by almost nothing.
    """
    bits = means.float().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    top = (bits + 0x80).clamp(max=0xFFFFFFFF) >> 8
    number = (top << 6) | quarters.clamp(0, 63).to(torch.int64)
    low = number & 0xFFFF
    return ((number >> 16) - SELDOM).double(), torch.where(low >= 0x8000, low - 0x10000, low).double()


def _from_absolute(high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    """The inverse of `_absolute`: the means, and the variances plus `EPSILON`."""
    number = ((high.to(torch.int64) + SELDOM) << 16) | (low.to(torch.int64) & 0xFFFF)
    bits = (number >> 6) << 8
    means = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).to(torch.int32).view(torch.float32)
    return means.double(), EPSILON * torch.exp2((number & 63).double() / QUARTERS)


def _steps(values: Tensor) -> Tensor:
    return values.round().nan_to_num().clamp(-32768, 32767)


def _mean_scale(doublings: Tensor) -> Tensor:
    """The unit of a mean's steps, in dense standard deviations: the state's own deviation where that is smaller.

    BatchNorm divides by that deviation: if the mean of a channel that pruning has silenced were slightly off, the
    channel would come out loud.
    """
    return (torch.exp2(doublings) + QUIET).clamp(max=1.0).sqrt()


def real(dense: Mapping[str, Tensor], steps: Differences, norms: Sequence[Norm]) -> RealDifferences:
    """The real differences behind a state's steps: means in dense standard deviations, variances in doublings."""
    found, position = [], 0
    for mean, variance in norms:
        size = dense[mean].numel()
        low, high = torch.from_numpy(steps[position : position + 2 * size].astype(np.float64)).reshape(2, size)
        mean0, variance0 = dense[mean].double().reshape(-1), dense[variance].double().reshape(-1) + EPSILON
        doublings = high / VARIANCE_STEPS
        means, spread = _from_absolute(high, low)
        exactly = high < OFTEN
        found += [
            torch.where(exactly, (means - mean0) / variance0.sqrt(), low / MEAN_STEPS * _mean_scale(doublings)),
            torch.where(exactly, torch.log2(spread / variance0), doublings),
        ]
        position += 2 * size
    return torch.cat(found).numpy() if found else np.zeros(0)


def apply(dense: Mapping[str, Tensor], differences: RealDifferences, norms: Sequence[Norm]) -> dict[str, Tensor]:
    """The statistics, by tensor name, for `real` differences."""
    found, position = {}, 0
    for mean, variance in norms:
        shape, size = dense[mean].shape, dense[mean].numel()
        parts = torch.from_numpy(differences[position : position + 2 * size]).reshape(2, *shape)
        position += 2 * size
        variance0 = dense[variance].double() + EPSILON
        found[mean] = (dense[mean].double() + parts[0] * variance0.sqrt()).to(dense[mean].dtype)
        moved = (variance0 * torch.exp2(parts[1]) - EPSILON).clamp(min=0)
        found[variance] = moved.to(dense[variance].dtype)
    return found
