"""Copies of a model: one that keeps its state for the compiled model, and others that may be tried out."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pof.errors import PofError, first_line
from pof.runtime.compiled_weights import ModelTensors, tensors_of_model
from pof.runtime.torch_export import without_cache

OF_TORCH = frozenset(vars(nn.Module())) - {"_forward_hooks", "_forward_pre_hooks"}
"""The attributes that every module has, such as its parameters and children, but for the hooks that a call runs."""
DEEPEST = 6
"""How many objects within objects are looked into for attributes that changed."""


def frozen_copy(model: nn.Module, compiled: object = None) -> tuple[nn.Module, ModelTensors]:
    """A copy of the model that nobody else changes, and all its parameters and buffers by name.

    `compiled` may have taken the place of the model's own `forward`; the copy has that again.

    Raises:
        PofError: the model cannot be copied.
    """
    try:
        frozen = without_cache(copy.deepcopy(model, {id(compiled): compiled}).requires_grad_(False))
    except Exception as error:  # each module may have its own reason
        raise PofError(f"the model cannot be copied, which pof.compile needs: {first_line(error)}") from error
    if compiled is not None and vars(frozen).get("forward") is compiled:
        del frozen.forward
    return frozen, tensors_of_model(frozen)


def refuse_training(model: nn.Module) -> None:
    """Raise an error if the model, or a part of it, is in training mode."""
    if any(module.training for module in model.modules()):
        raise PofError("the model is in training mode, where BatchNorm and dropout differ: call model.eval() first")


def trial_copy(frozen: nn.Module) -> nn.Module:
    """A copy with the same parameters and buffers, but with plain attributes of its own, for export and timing."""
    shared = [*frozen.parameters(), *frozen.buffers()]
    return copy.deepcopy(frozen, {id(tensor): tensor for tensor in shared})


@contextmanager
def unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Give the buffers their values back afterwards: trial runs must not count."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def structure(model: nn.Module) -> dict[str, Any]:
    """All that export takes for constant besides weights: plain attributes, and which tensors are tied."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        attributes = {key: value for key, value in vars(module).items() if key not in OF_TORCH}
        found[name] = (type(module), _plain(attributes, DEEPEST))
    first: dict[object, str] = {}
    for name, tensor in tensors_of_model(model).items():
        if tensor.numel():
            place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.stride()))
            found[f"{name} is"] = first.setdefault(place, name)
    return found


def same_structure(one: Any, other: Any) -> bool:
    """Whether two structures, or parts of them, are equal."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype is other.dtype and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_structure(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(same_structure(*pair) for pair in zip(one, other, strict=True))
    return bool(one is other or one == other)


def _plain(value: Any, depth: int) -> Any:
    """A value as nested dicts and tuples that can be compared."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, type, FunctionType)):
        return value
    if isinstance(value, np.ndarray):
        return (value.shape, str(value.dtype), value.tobytes())
    if isinstance(value, MethodType):
        return value.__func__
    if isinstance(value, nn.Module) or depth == 0:
        return type(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each, depth - 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_plain(each, depth - 1) for each in value)
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(map(repr, value)))
    return (type(value), {key: _plain(each, depth - 1) for key, each in getattr(value, "__dict__", {}).items()})
