"""Which tensors of a state_dict are pruned when its model is not available: names and shapes decide."""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from pof.errors import PlanError
from pof.planning.entry import Entry
from pof.planning.name_globs import as_globs, matches, refuse_unmatched

PRUNABLE = (torch.float32, torch.float16, torch.bfloat16)
"""The types of the weights that a file can prune."""
EMBEDDING = re.compile(r"embed|(^|[._])(emb|wte|wpe)([._]|$)", re.IGNORECASE)
"""How the names of embeddings look: GPT-2 calls them wte and wpe."""
COLOURS = 3


def plan_of_tensors(
    tensors: Mapping[str, Tensor], include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> tuple[Entry, ...]:
    """The tensors to prune: those whose name ends in "weight" and that have two or more dimensions.

    As everywhere, the first convolution and embeddings (recognised by name) are left out, unless `include` is given.
    """
    include, exclude = as_globs(include, "include"), as_globs(exclude, "exclude")
    names = [(name,) for name in tensors]
    refuse_unmatched(include, "include", names)
    refuse_unmatched(exclude, "exclude", names)
    likely = [name for name, value in tensors.items() if _is_weight(name, value)]
    first = first_convolution({name: tensors[name] for name in likely})
    if not include:
        likely = [name for name in likely if name != first and not EMBEDDING.search(name)]
    entries = [
        Entry(name, "", tuple(tensors[name].shape))
        for name in likely
        if not matches((name,), exclude) and (not include or matches((name,), include))
    ]
    if not entries:
        raise PlanError("nothing to prune: no tensor called weight has two or more dimensions; name some with include")
    return tuple(entries)


def first_convolution(weights: Mapping[str, Tensor]) -> str | None:
    """The name of the convolution that sees the images: the first one.

    If the names are sorted, as in safetensors files, it is the first with three input channels, if there is one.
    """
    convolutions = [name for name, weight in weights.items() if weight.dim() > 2]
    of_colours = [name for name in convolutions if weights[name].shape[1] == COLOURS]
    return next(iter((list(weights) == sorted(weights) and of_colours) or convolutions), None)


def _is_weight(name: str, value: Tensor) -> bool:
    return (
        name.rpartition(".")[2].endswith("weight")
        and value.dim() >= 2
        and value.dtype in PRUNABLE
        and bool(value.numel())
    )
