"""Where weights lie in memory, and which of them share it."""

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter


def identity(weight: Tensor) -> object:
    """A key that is equal for two parameters with the same place in memory, even if they are two objects."""
    no_memory = isinstance(weight, UninitializedParameter) or weight.is_meta or weight.layout != torch.strided
    if no_memory or weight.numel() == 0:
        return id(weight)
    return weight.data_ptr(), tuple(weight.shape), weight.stride()


def extent(weight: Tensor) -> tuple[int, int, int] | None:
    """Where a weight lies: the addresses of its storage and of its first and last element; None if it has no memory."""
    if isinstance(weight, UninitializedParameter) or weight.is_meta or weight.layout != torch.strided:
        return None
    if weight.numel() == 0 or type(weight.data) is not Tensor:
        return None
    span = sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    return weight.untyped_storage().data_ptr(), weight.data_ptr(), weight.data_ptr() + span * weight.element_size()


def overlap(one: tuple[int, int, int] | None, other: tuple[int, int, int] | None) -> bool:
    """Whether two extents have bytes in common."""
    return one is not None and other is not None and one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]
