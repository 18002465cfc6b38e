"""Parameters that cannot be pruned, and what to do about them."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pof.errors import PlanError, PofError
from pof.ranking.magnitude_bits import SUPPORTED_DTYPES


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


def refuse_other_plan(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise unless the weights of the saved `state` have the names and shapes of `own`."""
    for name in sorted(set(state) ^ set(own)):
        raise PofError(f"this state belongs to another plan: {name!r} is in only one of the two")
    for name, tensor in own.items():
        if state[name].shape != tensor.shape:
            shapes = f"{tuple(state[name].shape)} instead of {tuple(tensor.shape)}"
            raise PofError(f"this state belongs to another plan: {name!r} has shape {shapes}")


def _shares_elements(weight: Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(weight.shape, weight.stride(), strict=True))
