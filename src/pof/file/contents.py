"""The contents of a file: the tensors of a model or a state_dict, and which of them are pruned."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from pof.errors import PofError
from pof.file.header import MOST_ELEMENTS
from pof.file.weight_integers import DTYPES
from pof.planning.entry import Entry
from pof.planning.plan_of_tensors import PRUNABLE, plan_of_tensors
from pof.planning.pruning_plan import plan
from pof.planning.shared_memory import extent, identity, overlap
from pof.planning.wrappers import unwrap


@dataclass(frozen=True)
class Contents:
    """The tensors by name, in the order of the state_dict, and the entries that are pruned."""

    tensors: dict[str, Tensor]
    aliases: dict[str, str]
    """Names of tensors that share another one's memory, each with the name of that one."""
    entries: tuple[Entry, ...]
    names: tuple[str, ...]
    """All names, in the order of the state_dict."""


def contents_of_model(
    model: nn.Module,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    sparsities: Mapping[str, float] | None = None,
) -> Contents:
    """The state_dict of `model`, pruned as `pof.plan` says."""
    chosen = plan(model, include=include, exclude=exclude, sparsities=sparsities)
    tensors, aliases = _without_aliases(unwrap(model).state_dict())
    entries = []
    for entry in chosen:
        names = [name for name in entry.names if name in tensors]
        if len(names) != 1:
            raise PofError(f"weight {entry.name!r} must be in the state_dict exactly once: exclude it")
        _refuse_unstorable(names[0], tensors[names[0]])
        entries.append(Entry(names[0], entry.kind, entry.shape, entry.layout, entry.sparsity))
    _refuse_shared(tensors, [entry.name for entry in entries])
    return Contents(tensors, aliases, tuple(entries), tuple(unwrap(model).state_dict()))


def contents_of_state_dict(
    state: Mapping[str, Tensor], include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> Contents:
    """A state_dict without its model, pruned as `plan_of_tensors` says."""
    tensors, aliases = _without_aliases(state)
    return Contents(tensors, aliases, plan_of_tensors(tensors, include, exclude), tuple(state))


def _without_aliases(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    seen: dict[object, str] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise PofError(f"{name!r} is a {type(value).__name__}, not a tensor: a .pof file holds tensors only")
        if prod(max(size, 1) for size in value.shape) > MOST_ELEMENTS:
            raise PofError(f"{name!r} has the shape {tuple(value.shape)}, more than the 2^40 elements of a .pof tensor")
        if str(value.dtype).removeprefix("torch.") not in DTYPES or value.layout != torch.strided or value.is_meta:
            raise PofError(f"{name!r} is {value.dtype} ({value.layout}): a .pof file holds plain dense tensors")
        # A view that torch conjugates or negates only on use does not have the numbers that are in its memory.
        value = value.resolve_conj().resolve_neg()
        key = (value.dtype, identity(value))
        if value.numel() and key in seen:
            aliases[name] = seen[key]
        else:
            seen[key] = name
            tensors[name] = value.detach()
    return tensors, aliases


def _refuse_unstorable(name: str, value: Tensor) -> None:
    if value.dtype not in PRUNABLE:
        raise PofError(
            f"weight {name!r} is {value.dtype}: a .pof file prunes float32, float16 and bfloat16: call model.float(), "
            "or exclude it"
        )


def _refuse_shared(tensors: Mapping[str, Tensor], pruned: Iterable[str]) -> None:
    """Refuse tensors that share memory with a pruned one (a transposed tie): loading them would undo the pruning."""
    places = {name: extent(value) for name, value in tensors.items()}
    for name in pruned:
        for other, place in places.items():
            if other != name and overlap(place, places[name]) and _share_elements(tensors[other], tensors[name]):
                raise PofError(
                    f"{other!r} shares memory with {name!r} in another shape: untie them, or exclude {name!r}"
                )


def _share_elements(one: Tensor, other: Tensor) -> bool:
    if one.dtype is not other.dtype:
        return True
    used = torch.zeros(one.untyped_storage().nbytes() // one.element_size(), dtype=torch.bool)
    used.as_strided(one.shape, one.stride(), one.storage_offset()).fill_(True)
    return bool(used.as_strided(other.shape, other.stride(), other.storage_offset()).any())
