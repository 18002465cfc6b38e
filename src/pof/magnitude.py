"""Ranking weights by magnitude: the one pruning rule that every part of pof uses.

Prune(W, r) zeroes the `round(r * n)` smallest of n magnitudes. Ties go by index: of equal magnitudes the one with the
lower flat (row-major) index counts as smaller. So the result is the same on every machine, rank and memory layout.

A pruning is held as a `Cut`, two numbers instead of a mask, because applying it then runs at the speed of a copy.
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pof.errors import PofError
from pof.scratch import Scratch

GLOBAL_FLOOR = 0.01
"""With global ranking every layer keeps at least this share of its weights (and at least one)."""

_INTEGERS = {
    torch.float16: (torch.int16, 0x7FFF),
    torch.bfloat16: (torch.int16, 0x7FFF),
    torch.float32: (torch.int32, 0x7FFF_FFFF),
    torch.float64: (torch.int64, 0x7FFF_FFFF_FFFF_FFFF),
}
SUPPORTED_DTYPES = tuple(_INTEGERS)


class Cut(NamedTuple):
    """Prune what is smaller than `value`, and of what equals it the weights before flat index `limit`."""

    value: float
    limit: int


NO_CUT = Cut(-1.0, 0)


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite: by the least and the largest, many times faster than asking each."""
    return not values.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())


def check_sparsity(value: object, name: str = "sparsity") -> float:
    """Return `value` as a float if it is a number in [0, 1); otherwise say what to pass instead."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise PofError(f"{name}={value!r} must be a number in [0, 1): pass 0.7 for 70 %")
    number = float(value)
    if 0.0 <= number < 1.0:
        return number
    if number == 1.0:
        remedy = "1.0 would leave no weights; pass 0.99 for 99 %"
    elif 1.0 < number < 100.0:
        remedy = f"pass {number / 100:g} for {number:g} %"
    else:
        remedy = "pass 0.7 for 70 %, 0.0 for dense"
    raise PofError(f"{name}={value!r} must be in [0, 1): {remedy}")


def prune_count(weights: int, sparsity: float) -> int:
    """How many of `weights` are pruned: Python's `round(sparsity * weights)`, as in `torch.nn.utils.prune`."""
    return round(sparsity * weights)


def magnitude_bits(values: Tensor, scratch: Scratch | None = None) -> Tensor:
    """The magnitudes of `values` as integers that sort as the magnitudes do, in the same shape and memory layout."""
    integer, mask = _INTEGERS[values.dtype]
    out = None if scratch is None else scratch.like(values, "bits", integer)
    bits = torch.bitwise_and(values.detach().view(integer), mask, out=out)
    # 16-bit integers are widened: numpy partitions 32-bit ones several times faster.
    return bits.to(torch.int32) if integer is torch.int16 else bits


def has_no_gaps(tensor: Tensor) -> bool:
    """Whether the elements fill their memory, in whatever order (contiguous, channels_last, transposed)."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span + 1 == tensor.numel()


def in_memory_order(tensor: Tensor) -> Tensor:
    """All elements in one dimension, in the order in which they lie in memory; `tensor` must have no gaps."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def bits_to_magnitude(bits: int, dtype: torch.dtype) -> float:
    """The magnitude whose integer form is `bits`."""
    if dtype is torch.float32:
        return float(np.int32(bits).view(np.float32))  # several times faster than a tensor
    return float(torch.tensor(bits, device="cpu").to(_INTEGERS[dtype][0]).view(dtype))


def find_cut(values: Tensor, count: int, scratch: Scratch | None = None) -> Cut:
    """The cut that prunes exactly the `count` smallest magnitudes of `values`."""
    if count <= 0:
        return NO_CUT
    if count >= values.numel():
        return Cut(math.inf, values.numel())
    bits = in_memory_order(magnitude_bits(values, scratch))
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
    """The largest of the `count` smallest float32 magnitudes, whose bits these are; they lose their order.

    None if the next one is equal, so that a value alone is no cut.
    """
    if count <= 0:
        return NO_CUT.value
    if count >= bits.numel():
        return math.inf
    ordered = in_memory_order(bits).numpy()
    ordered.partition(count - 1)
    last_pruned = int(ordered[count - 1])
    return bits_to_magnitude(last_pruned, torch.float32) if last_pruned < int(ordered[count:].min()) else None


def cut_through(values: Tensor, tied: int, pruned: int) -> Cut:
    """The cut through the magnitudes whose bits are `tied`: the first `pruned` of them, by index, are pruned."""
    equal = magnitude_bits(values).reshape(-1) == tied
    # numpy finds a few among many several times faster.
    places = np.flatnonzero(equal.numpy()) if equal.device.type == "cpu" else torch.nonzero(equal).view(-1)
    return Cut(bits_to_magnitude(tied, values.dtype), int(places[pruned - 1]) + 1)


def cut_from(cut: Cut, start: int, size: int) -> Cut:
    """What `cut` is for the `size` values from flat index `start` on."""
    return Cut(cut.value, min(max(cut.limit - start, 0), size))


def zero_smallest(values: Tensor, cut: Cut, out: Tensor | None = None) -> Tensor:
    """`values` with what `cut` prunes set to zero, written to `out` (of the same shape) if given.

    `hardshrink` is exactly this comparison, in one vectorised pass.
    """
    if out is None:
        out = torch.empty_like(values)
    if cut.limit >= values.numel():
        return torch.hardshrink(values, cut.value, out=out)
    keeps_ties = _just_below(cut.value, values.dtype)
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
    """True where `cut` keeps the weight, also where the kept weight is itself zero."""
    magnitudes = values.abs()
    if cut.limit >= values.numel():
        return magnitudes > cut.value
    tied = (magnitudes == cut.value).contiguous()
    tied.view(-1)[: cut.limit] = False
    return tied.logical_or_(magnitudes > cut.value)


def share_globally(layers: Sequence[Tensor], sparsity: float) -> list[int]:
    """How many weights to prune in each layer so that all are ranked together, with the floor of `GLOBAL_FLOOR`.

    Ties between layers go by their order. The counts never fall as the sparsity grows, so sparser states nest.
    """
    sizes = [layer.numel() for layer in layers]
    total = prune_count(sum(sizes), sparsity)
    most = [size - max(1, math.ceil(GLOBAL_FLOOR * size)) for size in sizes]
    if total > sum(most):
        reach = math.floor(sum(most) / sum(sizes) * 1e4) / 1e4
        raise PofError(
            f"sparsity={sparsity:g} is more than {reach:g}, the most that scope='global' reaches "
            f"when each layer keeps {GLOBAL_FLOOR:.0%} of its weights: ask for less, or use scope='layer'"
        )
    # The largest `size - most` of each layer take no part, so what is left is one plain ranking.
    dtype = torch.float64 if any(layer.dtype is torch.float64 for layer in layers) else torch.float32
    ranked = [in_memory_order(magnitude_bits(layer.to(dtype))).cpu() for layer in layers]
    candidates = torch.cat([_smallest(bits, count) for bits, count in zip(ranked, most, strict=True)])
    if total == 0:
        return [0] * len(sizes)
    threshold = int(np.partition(candidates.numpy(), total - 1)[total - 1])
    below = [min(int((bits < threshold).sum()), top) for bits, top in zip(ranked, most, strict=True)]
    upto = [min(int((bits <= threshold).sum()), top) for bits, top in zip(ranked, most, strict=True)]
    left = total - sum(below)
    counts = []
    for lower, upper in zip(below, upto, strict=True):
        tied = min(left, upper - lower)
        counts.append(lower + tied)
        left -= tied
    return counts


def _smallest(bits: Tensor, count: int) -> Tensor:
    return torch.from_numpy(np.partition(bits.numpy(), count)[:count]) if count < len(bits) else bits


def _just_below(value: float, dtype: torch.dtype) -> float:
    """The largest magnitude under `value`; below zero there is none, and a negative number keeps all."""
    if value <= 0.0:
        return -1.0
    return bits_to_magnitude(int(magnitude_bits(torch.tensor([value], dtype=dtype, device="cpu"))) - 1, dtype)
