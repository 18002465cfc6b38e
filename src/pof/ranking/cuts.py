"""The pruning rule that every part of pof uses, and the cut that describes a pruning by two numbers.

Prune(W, r) zeroes the `round(r * n)` smallest of n magnitudes. Ties go by index: of equal magnitudes, the one with the
lower flat (row-major) index counts as smaller. So the result is the same on every machine, rank and memory layout.

A pruning is kept as a `Cut`, two numbers instead of a mask, because applying it is then as fast as a copy.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pof.ranking.magnitude_bits import bits_to_magnitude, in_memory_order, just_below, magnitude_bits
from pof.ranking.reused_buffers import ReusedBuffers


class Cut(NamedTuple):
    """Prunes the weights smaller than `value`, and those equal to it that come before flat index `limit`."""

    value: float
    limit: int


NO_CUT = Cut(-1.0, 0)


def find_cut(values: Tensor, count: int, buffers: ReusedBuffers | None = None) -> Cut:
    """The cut that prunes exactly the `count` smallest magnitudes of `values`."""
    if count <= 0:
        return NO_CUT
    if count >= values.numel():
        return Cut(math.inf, values.numel())
    bits = in_memory_order(magnitude_bits(values, buffers))
    if bits.device.type == "cpu":
        ordered = bits.numpy()
        ordered.partition(count - 1)
        last_pruned = int(ordered[count - 1])
        if last_pruned < int(ordered[count:].min()):
            return Cut(bits_to_magnitude(last_pruned, values.dtype), values.numel())
        return cut_through(values, last_pruned, int(np.count_nonzero(ordered[:count] == last_pruned)))
    last_pruned, first_kept = (int(torch.kthvalue(bits, k).values) for k in (count, count + 1))
    if last_pruned < first_kept:
        return Cut(bits_to_magnitude(last_pruned, values.dtype), values.numel())
    return cut_through(values, last_pruned, count - int((bits < last_pruned).sum()))


def find_cut_of_bits(bits: Tensor, count: int) -> float | None:
    """The largest of the `count` smallest float32 magnitudes; `bits` holds the magnitudes, and is reordered.

    None if the next magnitude is equal, so that a value alone cannot describe the cut.
    """
    if count <= 0:
        return NO_CUT.value
    if count >= bits.numel():
        return math.inf
    ordered = in_memory_order(bits).numpy()
    ordered.partition(count - 1)
    last_pruned = int(ordered[count - 1])
    return bits_to_magnitude(last_pruned, torch.float32) if last_pruned < int(ordered[count:].min()) else None


def kth_magnitude(values: Tensor, rank: int) -> float:
    """The magnitude at position `rank`, counted from 0, when all are sorted from the smallest."""
    bits = in_memory_order(magnitude_bits(values.contiguous())).cpu().numpy()
    return bits_to_magnitude(int(np.partition(bits, rank)[rank]), values.dtype)


def cut_through(values: Tensor, tied: int, pruned: int) -> Cut:
    """The cut through the magnitudes whose bits are `tied`: the first `pruned` of them, by index, are pruned."""
    equal = magnitude_bits(values).reshape(-1) == tied
    # numpy is several times faster when few elements are True.
    places = np.flatnonzero(equal.numpy()) if equal.device.type == "cpu" else torch.nonzero(equal).view(-1)
    return Cut(bits_to_magnitude(tied, values.dtype), int(places[pruned - 1]) + 1)


def cut_from(cut: Cut, start: int, size: int) -> Cut:
    """The part of `cut` for the `size` values that begin at flat index `start`."""
    return Cut(cut.value, min(max(cut.limit - start, 0), size))


def zero_smallest(values: Tensor, cut: Cut, out: Tensor | None = None) -> Tensor:
    """`values` with the weights that `cut` prunes set to zero, written to `out` (of the same shape) if given.

    `hardshrink` makes exactly this comparison, in one vectorised pass.
    """
    if out is None:
        out = torch.empty_like(values)
    if cut.limit >= values.numel():
        return torch.hardshrink(values, cut.value, out=out)
    keeps_ties = just_below(cut.value, values.dtype)
    if values.is_contiguous() and out.is_contiguous():
        before, after = values.view(-1).tensor_split([cut.limit])
        out_before, out_after = out.view(-1).tensor_split([cut.limit])
        torch.hardshrink(before, cut.value, out=out_before)
        torch.hardshrink(after, keeps_ties, out=out_after)
        return out
    index = torch.arange(values.numel(), device=values.device).view(values.shape)
    with_ties = torch.hardshrink(values, keeps_ties)
    without = torch.hardshrink(values, cut.value)
    return out.copy_(torch.where(index < cut.limit, without, with_ties))


def keep_mask(values: Tensor, cut: Cut) -> Tensor:
    """True where `cut` keeps the weight, even if the kept weight is itself zero."""
    magnitudes = values.abs()
    if cut.limit >= values.numel():
        return magnitudes > cut.value
    tied = (magnitudes == cut.value).contiguous()
    tied.view(-1)[: cut.limit] = False
    return tied.logical_or_(magnitudes > cut.value)


def largest(keys: Tensor, count: int) -> Tensor:
    """The mask of the `count` largest magnitudes of `keys`."""
    return keep_mask(keys, find_cut(keys, keys.numel() - count))
