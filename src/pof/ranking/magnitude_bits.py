"""Magnitudes as integers that sort in the same order, and how a tensor lies in memory."""

import numpy as np
import torch
from torch import Tensor

from pof.ranking.reused_buffers import ReusedBuffers

_INTEGERS = {
    torch.float16: (torch.int16, 0x7FFF),
    torch.bfloat16: (torch.int16, 0x7FFF),
    torch.float32: (torch.int32, 0x7FFF_FFFF),
    torch.float64: (torch.int64, 0x7FFF_FFFF_FFFF_FFFF),
}
SUPPORTED_DTYPES = tuple(_INTEGERS)
"""The types of weights that can be ranked."""


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite. Looks only at the smallest and the largest, which is many times faster."""
    return not values.numel() or bool(torch.isfinite(torch.stack(torch.aminmax(values))).all())


def count_zeros(values: Tensor) -> int:
    """How many values are zero."""
    return values.numel() - int(torch.count_nonzero(values))


def magnitude_bits(values: Tensor, buffers: ReusedBuffers | None = None) -> Tensor:
    """The magnitudes of `values` as integers that sort in the same order, with the same shape and memory layout."""
    integer, mask = _INTEGERS[values.dtype]
    out = None if buffers is None else buffers.like(values, "bits", integer)
    bits = torch.bitwise_and(values.detach().view(integer), mask, out=out)
    # 16-bit integers are widened: numpy partitions 32-bit ones several times faster.
    return bits.to(torch.int32) if integer is torch.int16 else bits


def bits_to_magnitude(bits: int, dtype: torch.dtype) -> float:
    """The magnitude whose integer form is `bits`."""
    if dtype is torch.float32:
        return float(np.int32(bits).view(np.float32))  # several times faster than a tensor
    return float(torch.tensor(bits, device="cpu").to(_INTEGERS[dtype][0]).view(dtype))


def just_below(value: float, dtype: torch.dtype) -> float:
    """The largest magnitude below `value`. Below zero there is none: -1.0 is returned, which keeps everything."""
    if value <= 0.0:
        return -1.0
    return bits_to_magnitude(int(magnitude_bits(torch.tensor([value], dtype=dtype, device="cpu"))) - 1, dtype)


def has_no_gaps(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in any order (contiguous, channels_last, transposed)."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span + 1 == tensor.numel()


def in_memory_order(tensor: Tensor) -> Tensor:
    """All elements in one dimension, in the order in which they lie in memory; `tensor` must have no gaps."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))
