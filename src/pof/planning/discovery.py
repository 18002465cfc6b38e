"""Finding the weights of a model that could be pruned, and those that cannot, with the reason."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from torch import nn
from torch.nn.parameter import UninitializedParameter

from pof.planning.borrowed_weights import borrowed_weights
from pof.planning.effective_weight import computes_with_its_weight
from pof.planning.entry import Entry
from pof.planning.layer_kinds import LayerKind, kind_of
from pof.planning.shared_memory import extent, identity, overlap
from pof.ranking.row_layout import PLAIN

EMPTY = "it has no elements"
EMBEDDED = "it is tied to an embedding: untie it to prune it"
EMBEDDING = "embeddings are not pruned"
UNKNOWN = "is not a layer that pof prunes"
OTHER_WEIGHTS = (
    "computes with other weights than it stores, so zeros would not stay zero: make it a plain layer to prune it"
)
BIAS = "biases are not pruned"
RECURRENT = "recurrent layers are not pruned"
QUANTISED = "it is quantised: prune before quantising"
NO_PARAMETER = "it is no parameter (a parametrisation, an old mask, a buffer): make it one"

COLOURS = 3
LEAST_SHARE = 0.001
"""Weights that hold less of the model than this need no mention."""

LeftOut = tuple[str, str]
"""The name of a weight that is not pruned, and why."""


def find_weights(model: nn.Module) -> tuple[list[tuple[Entry, bool]], list[LeftOut], list[str]]:
    """The weights that could be pruned, those that cannot, each with the reason, and the names of doubtful ones.

    Each weight that could be pruned comes with whether it belongs to the first convolution. Those of layers that cannot
    be tried alone are doubtful: such a layer may compute with other weights than it stores.
    """
    embeddings = [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    borrowed = borrowed_weights(model)
    first = next((module for module in model.modules() if _may_take_the_input(module)), None)
    found: dict[object, tuple[Entry, bool]] = {}
    memory = [(extent(module.weight), EMBEDDED) for module in embeddings]
    left_out = []
    doubtful = []
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
            elif computes_with_its_weight(module) is False:
                left_out.append((name, f"{type(module).__name__} {OTHER_WEIGHTS}"))
            elif key in borrowed and borrowed[key].keeps_zeros is False:
                left_out.append((name, f"{borrowed[key].reader} {OTHER_WEIGHTS}"))
            elif taken := [why for place, why in memory if overlap(place, extent(weight))]:
                left_out.append((name, taken[0]))
            else:
                found[key] = (_entry(name, module, weight, kind), module is first)
                unsure = computes_with_its_weight(module) is None
                unsure |= key in borrowed and borrowed[key].keeps_zeros is None
                doubtful += [name] if unsure else []
                memory.append((extent(weight), f"it shares memory with {name}, in another shape, and follows it"))
    return list(found.values()), [*left_out, *_unknown(model, found, left_out)], doubtful


def _may_take_the_input(module: nn.Module) -> bool:
    """Whether a module can be the convolution that sees the images: a depthwise one works on features."""
    kind = kind_of(module)
    if kind is None or not kind.convolves:
        return False
    groups, channels = getattr(module, "groups", 1), getattr(module, "in_channels", 1)
    return not (groups == channels and channels > COLOURS)


def _unknown(model: nn.Module, found: Mapping[object, tuple[Entry, bool]], left_out: list[LeftOut]) -> list[LeftOut]:
    """Weights of some size that neither list has: of embeddings, and of layers that no kind describes."""
    least = LEAST_SHARE * count_weights(model.parameters())
    parameters = dict(model.named_parameters(remove_duplicate=False))
    # What a weight is computed from, such as the parameters of a parametrisation, is told with that weight.
    owners = {name.rpartition(".")[0] for name, _ in left_out if name not in parameters}
    told = {name for name, _ in left_out}
    unknown = []
    for path, module in model.named_modules():
        if path in owners or path.partition(".parametrizations")[0] in owners - {path}:
            continue
        for attribute, weight in module._parameters.items():
            name = f"{path}.{attribute}" if path else attribute
            if weight is None or isinstance(weight, UninitializedParameter) or weight.dim() < 2:
                continue
            # A weight that is left out is told under each of its names, so that each can be found.
            if weight.numel() <= least or identity(weight) in found or name in told:
                continue
            unknown.append((name, _why_unknown(module, attribute)))
    return unknown


def _why_unknown(module: nn.Module, attribute: str) -> str:
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return EMBEDDING
    return BIAS if attribute.endswith("bias") else f"{type(module).__name__} {UNKNOWN}"


def count_weights(parameters: Iterable[nn.Parameter]) -> int:
    """How many numbers the parameters hold; those of lazy layers do not count yet."""
    return sum(weight.numel() for weight in parameters if not isinstance(weight, UninitializedParameter))


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
    plain = kind is None or kind.layout is None or isinstance(weight, UninitializedParameter)
    layout = PLAIN if plain or kind is None or kind.layout is None else kind.layout(module, weight)
    return Entry(name, type(module).__name__, shape, layout)
