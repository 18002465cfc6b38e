"""Compare the outputs of networks: with each other, with float64, and over several inputs."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from foreign_networks import call, tensors_of

ALIKE = 2e-5
"""How far outputs may be off torch's, as a share of the largest output."""
CACHES = ("past_key_values", "cache_params", "mems")
"""The outputs that are caches. A compiled model may leave them out."""


def largest_difference(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """The largest difference of two outputs, as a share of the largest value of each tensor."""
    worst = 0.0
    for name, value in wanted.items():
        if name not in found:
            continue
        assert found[name].shape == value.shape, f"{name} has another shape"
        assert bool(found[name].isfinite().all()) or not value.isfinite().all(), f"{name} is not finite"
        scale = float(value.abs().max()) or 1.0
        worst = max(worst, float((found[name].double() - value.double()).abs().max()) / scale)
    return worst


def outputs_alike(
    found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], exact: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Any]:
    """How far `found` is off `wanted`, and whether caches are among them.

    Raises:
        AssertionError: it is further off than `ALIKE`, and further off float64 than twice as far as `wanted` is.
    """
    caches = {name for name in wanted if name.startswith(CACHES)}
    lost = wanted.keys() - found.keys() - caches
    assert not lost, f"outputs are missing: {sorted(lost)[:3]}"
    difference = largest_difference(found, wanted)
    result: dict[str, Any] = {"difference": float(f"{difference:.2g}")}
    if caches:
        result["cache"] = "equal" if caches <= found.keys() else "left out"
    if difference > ALIKE:
        truth = exact()
        ours, theirs = largest_difference(found, truth), largest_difference(wanted, truth)
        result |= {"off_float64": float(f"{ours:.2g}"), "torch_off_float64": float(f"{theirs:.2g}")}
        assert ours <= max(ALIKE, 2 * theirs), (
            f"{difference:.1e} off torch, {ours:.1e} off float64 (torch {theirs:.1e})"
        )
    return result


@torch.no_grad()
def float64_outputs(model: nn.Module, inputs: Any) -> dict[str, Tensor]:
    """The outputs of a copy of `model` in float64."""
    doubled = pytree.tree_map(lambda v: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v, inputs)
    return tensors_of(call(copy.deepcopy(model).double(), doubled))


def spread(model: nn.Module, batch: Any) -> float:
    """The root mean square of what the outputs of a batch differ by from their mean, in float64 where that runs."""
    try:
        outputs = float64_outputs(model, batch)
    except RuntimeError:  # a model with float32 written into it
        with torch.no_grad():
            outputs = tensors_of(call(model, batch))
    values = [value for name, value in outputs.items() if not name.startswith(CACHES) and value.dim()]
    return max(float((value - value.mean(dim=0)).square().mean().sqrt()) for value in values)
