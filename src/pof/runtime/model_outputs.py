"""The outputs of the user's own model: they become the caller's own, and compiled ones are compared with them."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pof.runtime.call_inputs import CallInputs
from pof.runtime.model_copies import same_structure, structure, trial_copy, unchanged_buffers


def places_of(state: Mapping[str, Tensor]) -> frozenset[int]:
    """Where weights and buffers lie in memory."""
    return frozenset(tensor.untyped_storage().data_ptr() for tensor in state.values())


def owned(outputs: Any, places: frozenset[int]) -> Any:
    """The outputs, with copies of the weights and buffers among them: a caller must not be able to change those."""

    def shared(leaf: Any) -> bool:
        return isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() in places

    if not any(map(shared, (outputs,) if isinstance(outputs, Tensor) else pytree.tree_leaves(outputs))):
        return outputs
    contiguous = torch.contiguous_format
    return pytree.tree_map(lambda leaf: leaf.clone(memory_format=contiguous) if shared(leaf) else leaf, outputs)


def deviation_from_model(
    model: nn.Module, compiled: Callable[[], Any], inputs: Callable[[], CallInputs]
) -> float | None:
    """How far the compiled outputs are from the model's, relative to the largest; None if the model is random.

    It is infinite for a model that counts its calls in a plain attribute, which no program can do.
    """
    trial = trial_copy(model)
    found, states = [], []
    for _ in range(2):
        with unchanged_buffers(model):
            found.append(inputs().to(trial))
        states.append(structure(trial))
    if not same_structure(*states):
        return math.inf
    if largest_deviation(*found) > 0:
        return None
    with unchanged_buffers(model):
        return largest_deviation(compiled(), found[0])


def largest_deviation(found: Any, wanted: Any) -> float:
    """How far outputs are from others, relative to the largest of each; infinite if they are not alike."""
    ours, theirs = pytree.tree_leaves(found), pytree.tree_leaves(wanted)
    if len(ours) != len(theirs):
        return math.inf
    return max((_leaf_deviation(*pair) for pair in zip(ours, theirs, strict=True)), default=0.0)


def _leaf_deviation(ours: Any, theirs: Any) -> float:
    if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
        return 0.0
    if ours.shape != theirs.shape or ours.dtype is not theirs.dtype:
        return math.inf
    if not theirs.is_floating_point():
        # Rounding may move an index, such as the best of two equal classes.
        return 0.0
    finite = theirs.isfinite() & ours.isfinite()
    if not finite.any():
        return 0.0
    wanted = theirs[finite].double()
    found = float((ours[finite].double() - wanted).abs().max() / wanted.abs().max().clamp(min=1e-6))
    return found if theirs.dtype.itemsize > 2 else found / 10  # half precision has fewer digits
