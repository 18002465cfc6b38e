"""Which parameters can be pruned at all, and where they lie in memory."""

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pof.errors import PlanError
from pof.magnitude import SUPPORTED_DTYPES


def refuse_sharded(model: nn.Module) -> None:
    """Raise if the parameters of `model` are sharded."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()) or any(
        hasattr(parameter, "placements") for parameter in model.parameters()
    ):
        raise PlanError(
            "the parameters are sharded (FSDP), so no rank sees a whole row: use DistributedDataParallel, or prune the "
            "whole model before it is sharded"
        )


def refuse_unprunable(name: str, weight: nn.Parameter) -> None:
    """Raise if `weight` is of a kind that cannot be pruned."""
    if isinstance(weight, UninitializedParameter):
        raise PlanError(f"weight {name!r} has no shape yet (a lazy layer): run one batch through the model first")
    if weight.is_meta:
        raise PlanError(f"weight {name!r} is on the meta device and has no values: load the weights first")
    if type(weight.data) is not Tensor:
        raise PlanError(f"weight {name!r} is a {type(weight.data).__name__}: pof prunes plain tensors; exclude it")
    if weight.layout == torch.strided and _shares_elements(weight):
        raise PlanError(f"weight {name!r} is an expanded view, whose elements share memory: clone it first")
    if weight.is_quantized or weight.dtype not in SUPPORTED_DTYPES or weight.layout != torch.strided:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in SUPPORTED_DTYPES)
        what = weight.dtype if weight.layout == torch.strided else weight.layout
        raise PlanError(f"weight {name!r} is {what}: pof prunes dense {kinds}; prune before quantising, or exclude it")


def identity(weight: Tensor) -> object:
    """Equal for two parameters that are the same numbers in memory, even if they are two objects."""
    no_memory = isinstance(weight, UninitializedParameter) or weight.is_meta or weight.layout != torch.strided
    if no_memory or weight.numel() == 0:
        return id(weight)
    return weight.data_ptr(), tuple(weight.shape), weight.stride()


def extent(weight: Tensor) -> tuple[int, int, int] | None:
    """Where a weight lies: its memory, and the first and last byte; None if it has none."""
    if isinstance(weight, UninitializedParameter) or weight.is_meta or weight.layout != torch.strided:
        return None
    if weight.numel() == 0 or type(weight.data) is not Tensor:
        return None
    span = sum((size - 1) * stride for size, stride in zip(weight.shape, weight.stride(), strict=True))
    return weight.untyped_storage().data_ptr(), weight.data_ptr(), weight.data_ptr() + span * weight.element_size()


def overlap(one: tuple[int, int, int] | None, other: tuple[int, int, int] | None) -> bool:
    """Whether two extents have bytes in common."""
    return one is not None and other is not None and one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]


def _shares_elements(weight: Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(weight.shape, weight.stride(), strict=True))
