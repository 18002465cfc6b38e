"""How far the outputs of a network are from those of its teacher, whatever the network returns."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from pof.errors import PofError

LOGITS, PLAIN = "logits", "output"
EASE = 0.05
"""Distances well below this count as they are; others in parts of what they were."""


def output_distance(found: Any, wanted: Any) -> Tensor:
    """The distance of the outputs `found` from `wanted`, one number; 0 means equal.

    A field called logits is compared as probabilities (Kullback-Leibler divergence, averaged). Other tensors are
    compared by their squared error, as a share of the squares wanted; several of them are averaged. A plain tensor
    (inputs, numbers) may be either, so both are added.
    """
    ours, theirs = output_tensors(found), output_tensors(wanted)
    if not theirs:
        raise PofError(f"the model returns a {type(wanted).__name__} without floating-point tensors to compare")
    parts = [_distance(name, mine, theirs[name]) for name, mine in ours.items() if name in theirs]
    return torch.stack(parts).mean()


def blind_distance(wanted: Sequence[Any]) -> float:
    """The distance of a network that gives the mean output of a batch for every input of it."""
    found = [output_tensors(each) for each in wanted]
    parts = []
    for outputs in found:
        means = {name: tensor.mean(0, keepdim=True).expand_as(tensor) for name, tensor in outputs.items()}
        parts.append(float(output_distance(means, outputs)))
    return sum(parts) / len(parts)


def together(distances: Sequence[float], before: Sequence[float]) -> float:
    """The sum of distances of several states, each in parts of what it was, so that no state drowns the others."""
    return sum(new / (old + EASE) for new, old in zip(distances, before, strict=True))


def _distance(name: str, found: Tensor, wanted: Tensor) -> Tensor:
    if name == LOGITS:
        return _divergence(found, wanted)
    error = _error(found, wanted)
    return error + _divergence(found, wanted) if name == PLAIN and found.dim() == 2 and found.shape[1] > 1 else error


def output_tensors(outputs: Any) -> dict[str, Tensor]:
    """The floating-point tensors of `outputs` to compare, by name; logits alone if there are any."""
    if isinstance(outputs, Tensor):
        named: dict[str, Any] = {PLAIN: outputs}
    elif isinstance(outputs, Mapping):
        named = dict(outputs)
    elif isinstance(outputs, (tuple, list)):
        named = {str(number): value for number, value in enumerate(outputs)}
    else:
        named = {name: value for name, value in vars(outputs).items() if not name.startswith("_")}
    found = {}
    for name, value in named.items():
        leaves = pytree.tree_leaves(value)
        for number, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.numel():
                found[str(name) if len(leaves) == 1 else f"{name}.{number}"] = leaf
    return {LOGITS: found[LOGITS]} if LOGITS in found else found


def _divergence(found: Tensor, wanted: Tensor) -> Tensor:
    rows = (values.float().reshape(-1, values.shape[-1]) for values in (found, wanted))
    ours, theirs = (F.log_softmax(values, 1) for values in rows)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def _error(found: Tensor, wanted: Tensor) -> Tensor:
    wanted = wanted.float()
    return (found.float() - wanted).square().mean() / wanted.square().mean().clamp(min=1e-12)
