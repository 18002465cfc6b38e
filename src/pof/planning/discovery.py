"""Finding the weights of a model that could be pruned, and those that cannot, with the reason."""

from dataclasses import replace

from torch import nn
from torch.nn.parameter import UninitializedParameter

from pof.planning.entry import Entry
from pof.planning.layer_kinds import LayerKind, kind_of
from pof.planning.shared_memory import extent, identity, overlap

EMPTY = "it has no elements"
EMBEDDED = "it is tied to an embedding: untie it to prune it"
RECURRENT = "recurrent layers are not pruned"
QUANTISED = "it is quantised: prune before quantising"
NO_PARAMETER = "it is no parameter (a parametrisation, an old mask, a buffer): make it one"

LeftOut = tuple[str, str]
"""The name of a weight that is not pruned, and why."""


def find_weights(model: nn.Module) -> tuple[list[tuple[Entry, bool]], list[LeftOut]]:
    """The weights that could be pruned, and those that cannot, each with the reason.

    Each weight that could be pruned comes with whether it belongs to the first convolution.
    """
    embeddings = [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    first = next((module for module in model.modules() if (kind := kind_of(module)) and kind.convolves), None)
    found: dict[object, tuple[Entry, bool]] = {}
    memory = [(extent(module.weight), EMBEDDED) for module in embeddings]
    left_out = []
    for path, module in model.named_modules(remove_duplicate=False):
        left_out += _never_pruned(path, module)
        kind = kind_of(module)
        for attribute in () if kind is None else kind.weight_names(module):
            name = f"{path}.{attribute}" if path else attribute
            weight = module._parameters.get(attribute)
            if weight is None:
                left_out.append((name, NO_PARAMETER))
            elif (key := identity(weight)) in found:
                entry, is_first = found[key]
                found[key] = (replace(entry, tied=(*entry.tied, name)), is_first)
            elif not isinstance(weight, UninitializedParameter) and weight.numel() == 0:
                left_out.append((name, EMPTY))
            elif taken := [why for place, why in memory if overlap(place, extent(weight))]:
                left_out.append((name, taken[0]))
            else:
                found[key] = (_entry(name, module, weight, kind), module is first)
                memory.append((extent(weight), f"it shares memory with {name}, in another shape, and follows it"))
    return list(found.values()), left_out


def _never_pruned(path: str, module: nn.Module) -> list[LeftOut]:
    """The weights of layers whose kind cannot be pruned."""
    found = []
    if type(module).__module__.startswith("torch.ao.nn.") and callable(getattr(module, "weight", None)):
        found.append((f"{path}.weight", QUANTISED))
    if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
        found += [(f"{path}.{own}".lstrip("."), RECURRENT) for own in module._parameters if "weight" in own]
    return found


def _entry(name: str, module: nn.Module, weight: nn.Parameter, kind: LayerKind | None) -> Entry:
    shape = () if isinstance(weight, UninitializedParameter) else tuple(weight.shape)
    groups = None if kind is None or kind.groups is None else kind.groups(module)
    return Entry(name, type(module).__name__, shape, groups)
