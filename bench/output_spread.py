"""Whether a pruned network still answers: how much its outputs differ between inputs, compared with the dense network.

    from output_spread import different_inputs, is_constant, spreads
    inputs = different_inputs(args, keywords)      # a few inputs like the example's
    dense = spreads(model, inputs)
    elastic.prune(0.9)
    print(is_constant(dense, spreads(model, inputs)))

A spread is the deviation of an output over the inputs, in parts of its own size: a network whose outputs shrink as a
whole is not constant, one whose outputs only tremble around a constant is. All is computed in float64, where a small
dependence is not lost in roundings.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
CONSTANT = 1e-4
"""A network is constant if its outputs differ this much less than those of the dense network."""


def different_inputs(
    args: Sequence[Any], keywords: Mapping[str, Any] | None = None, count: int = 4, seed: int = 0
) -> list[Inputs]:
    """A few inputs like an example's: other normal numbers, whole numbers up to its largest, masks as they are."""
    draws = torch.Generator().manual_seed(seed)

    def other(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype is torch.bool or value.numel() == 0:
            return value
        if value.is_floating_point():
            return torch.randn(value.shape, generator=draws, dtype=value.dtype)
        if bool((value == value.reshape(-1)[0]).all()):
            return value
        return torch.randint(0, int(value.max()) + 1, value.shape, generator=draws, dtype=value.dtype)

    return [pytree.tree_map(other, (tuple(args), dict(keywords or {}))) for _ in range(count)]


@torch.no_grad()
def spreads(model: nn.Module, inputs: Sequence[Inputs]) -> list[float]:
    """For each output tensor its deviation over the inputs, in parts of its root mean square."""
    exact = copy.deepcopy(model).double().eval()
    runs = []
    for args, keywords in inputs:
        args, keywords = pytree.tree_map(_in_float64, (args, keywords))
        leaves = pytree.tree_leaves(_plain(exact(*args, **keywords)))
        runs.append([leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()])
    found = []
    for outputs in zip(*runs, strict=True):
        if len({output.shape for output in outputs}) > 1:
            found.append(1.0)  # even their sizes depend on the input
            continue
        stacked = torch.stack(list(outputs))
        size = float(stacked.square().mean().sqrt())
        deviation = float((stacked - stacked.mean(0)).square().mean().sqrt())
        found.append(deviation / size if size > 0 else 0.0)
    return found


def is_constant(dense: Sequence[float], pruned: Sequence[float], tolerance: float = CONSTANT) -> bool:
    """Whether all outputs that depend on the input in the dense network no longer do so in the pruned one."""
    pairs = [(before, after) for before, after in zip(dense, pruned, strict=True) if before > 1e-12]
    return bool(pairs) and all(not after > tolerance * before for before, after in pairs)


def _in_float64(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _plain(output: Any) -> Any:
    """The outputs of transformers as a tuple, without their cache."""
    if hasattr(output, "to_tuple"):
        output = output.to_tuple()
    return [part for part in output if isinstance(part, (Tensor, tuple, list))] if isinstance(output, tuple) else output
