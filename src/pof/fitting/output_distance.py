"""How far the outputs of a network are from those of its teacher, whatever the network returns."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from pof.errors import PofError

LOGITS = "logits"


def output_distance(found: Any, wanted: Any) -> Tensor:
    """The distance of the outputs `found` from `wanted`, one number; 0 means equal.

    Logits, which are a plain (images, classes) tensor or a field of that name, are compared as probabilities
    (Kullback-Leibler divergence, averaged). Other tensors are compared by their squared error, as a share of the
    squares wanted; several of them are averaged.
    """
    ours, theirs = output_tensors(found), output_tensors(wanted)
    if not theirs:
        raise PofError(f"the model returns a {type(wanted).__name__} without floating-point tensors to compare")
    parts = [
        _divergence(mine, theirs[name]) if name == LOGITS else _error(mine, theirs[name]) for name, mine in ours.items()
    ]
    return torch.stack(parts).mean()


def output_tensors(outputs: Any) -> dict[str, Tensor]:
    """The tensors of `outputs` to compare, by name; logits alone if there are any."""
    if isinstance(outputs, Tensor):
        return {LOGITS if outputs.dim() == 2 and outputs.shape[1] > 1 else "output": outputs}
    if isinstance(outputs, Mapping):
        named = dict(outputs)
    elif isinstance(outputs, (tuple, list)):
        named = {str(number): value for number, value in enumerate(outputs)}
    else:
        named = {name: value for name, value in vars(outputs).items() if not name.startswith("_")}
    found = {str(name): v for name, v in named.items() if isinstance(v, Tensor) and v.is_floating_point() and v.numel()}
    return {LOGITS: found[LOGITS]} if LOGITS in found else found


def _divergence(found: Tensor, wanted: Tensor) -> Tensor:
    rows = (values.float().reshape(-1, values.shape[-1]) for values in (found, wanted))
    ours, theirs = (F.log_softmax(values, 1) for values in rows)
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def _error(found: Tensor, wanted: Tensor) -> Tensor:
    wanted = wanted.float()
    return (found.float() - wanted).square().mean() / wanted.square().mean().clamp(min=1e-12)
