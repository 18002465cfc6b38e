"""Whether the outputs of a model still depend on its inputs, or no path of weights is left between them.

A network of tiny layers can die although each layer has weights: the only one that a layer keeps may read a unit whose
own row is empty. The graph of the model is traced, and each unit (a channel, a feature) is live if a weight leads to it
from a live one. What is not understood counts as live, so nothing is called dead that is not; but if only layers of
very few weights come after it, the outputs are in doubt.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.nn.modules import activation, dropout

from pof.errors import warn
from pof.planning.traced_graph import traced_graph
from pof.ranking.sparsity_state import DENSE, State

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
MIXING = (nn.GLU, nn.MultiheadAttention, nn.Softmax, nn.Softmin, nn.LogSoftmax, nn.Softmax2d)
"""The activations of torch after which a unit is made of several."""
EACH_BY_ITSELF = (
    *(getattr(activation, name) for name in activation.__all__ if getattr(activation, name) not in MIXING),
    *(getattr(dropout, name) for name in dropout.__all__),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.Identity),
    *(F.relu, F.relu6, F.leaky_relu, F.prelu, F.rrelu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.softplus),
    *(F.softsign, F.tanhshrink, F.softshrink, F.hardshrink, F.logsigmoid, F.sigmoid, F.tanh, F.hardsigmoid),
    *(F.hardswish, F.hardtanh, F.threshold, F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout),
    *(torch.relu, torch.selu, torch.celu, torch.sigmoid, torch.tanh, torch.sin, torch.cos, torch.exp, torch.abs),
    *(torch.sqrt, torch.square, torch.erf, torch.clamp, torch.clip, torch.neg, operator.neg),
    *("relu", "relu_", "sigmoid", "sigmoid_", "tanh", "tanh_", "sin", "cos", "exp", "abs", "sqrt", "square", "erf"),
    *("clamp", "clamp_", "clip", "neg", "contiguous", "clone", "float", "double", "half", "to", "type_as"),
)
"""Modules, functions and methods after which each unit is made of the same unit before."""
SUMS = (
    *(operator.add, operator.iadd, operator.sub, operator.isub, operator.mul, operator.imul, operator.truediv),
    *(torch.add, torch.sub, torch.mul, torch.div, "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_"),
)
"""What makes a unit of two values of the same unit of both."""
JOINS, PARTS, SHAPES = (torch.cat, torch.concat), (torch.chunk, "chunk"), ("view", "reshape", torch.reshape)


class Units(NamedTuple):
    """Which units of a value depend on the inputs."""

    live: Tensor
    """One boolean for all units, or one for each."""
    along: int | None = None
    """The dimension in which they lie: 1 or -1; None for one boolean."""
    are_maps: bool = False
    """Whether flattened maps of one unit lie in a row; else all units of one place do."""
    doubt: int = 0
    """1 if some units may be dead, but nobody knows which; 2 if all of them may be."""

    @property
    def any(self) -> bool:
        """Whether a unit is live."""
        return bool(self.live.any())


NO_UNITS, LIVE = Units(torch.tensor(False)), Units(torch.tensor(True))
SOME, PERHAPS = LIVE._replace(doubt=1), LIVE._replace(doubt=2)
FEW = 16
"""A layer that keeps so few weights may well read nothing but dead units."""


def is_thin(kept: int, rows: int) -> bool:
    """Whether a layer keeps so few weights that no path may lead through it: a few, or less than one for each row."""
    return kept <= max(FEW, rows)


class PathCheck:
    """Warns once in each state of a model whose outputs no longer depend on its inputs.

    Only models with a thin layer are looked at, once in each state, so that changing the state stays quick.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._graph: fx.Graph | None = None
        self._was_traced = False
        self._seen: set[State] = set()

    def warn_if_dead(self, state: State, fewest: int) -> None:
        """Warn if no path is left in the present `state`, in which the thinnest layer keeps `fewest` weights.

        If the model cannot be followed, and that layer keeps very few, the warning says so.
        """
        if state == DENSE or state in self._seen:
            return
        self._seen.add(state)
        if not self._was_traced:
            self._graph, self._was_traced = traced_graph(self._model), True
        if self._graph is None:
            if fewest <= FEW:
                _warn_of_doubt(state, fewest)
            return
        end = dead_end(self._model, self._graph)
        if end:
            warn(
                f"{state}, the outputs are the same for every input, as no path of weights leads through {end!r}: "
                "prune less, or exclude small layers"
            )
        elif end is not None:
            _warn_of_doubt(state, fewest)


def _warn_of_doubt(state: State, fewest: int) -> None:
    warn(
        f"{state}, a layer has {fewest} weights left, and this model cannot be followed: perhaps "
        "the outputs are the same for every input. Try it, prune less, or exclude small layers"
    )


@torch.no_grad()
def dead_end(model: nn.Module, graph: fx.Graph) -> str | None:
    """The first layer that nothing comes through, if the outputs do not depend on the inputs; "" if that may be so."""
    found: dict[fx.Node, Units] = {}
    parts: dict[fx.Node, list[Units]] = {}
    ends: list[str] = []
    for node in graph.nodes:
        before = [found[each] for each in node.all_input_nodes]
        if node.op == "output":
            live = [units for units in before if units.any]
            if live:
                return "" if all(units.doubt > 1 for units in live) else None
            return ends[0] if ends else None
        if node.target is operator.getitem and node.args[0] in parts and isinstance(node.args[1], int):
            found[node] = parts[node.args[0]][node.args[1]]
            continue
        if _is_one_of(node.target, PARTS):
            parts[node] = _chunks(node, before[0])
        found[node] = LIVE if node.op == "placeholder" else _after(model, node, before)
        if node.op == "call_module" and not found[node].any and any(units.any for units in before):
            ends.append(str(node.target))
    return None


def _after(model: nn.Module, node: fx.Node, before: list[Units]) -> Units:
    """Which units are live behind `node`."""
    if node.op == "get_attr":
        return LIVE
    live = [units for units in before if units.any]
    if not live:
        return NO_UNITS
    what: Any = model.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    known = _understood(what, node, before)
    if known is not None:
        return known
    if isinstance(what, nn.Module) and _has_thin_weights(what):
        return PERHAPS
    are_all_live = len(live) == len(before) and all(bool(units.live.all()) for units in live)
    return LIVE._replace(doubt=max(min(units.doubt for units in live), int(not are_all_live)))


def _understood(what: Any, node: fx.Node, before: Sequence[Units]) -> Units | None:
    """Which units are live behind an operation; None if nobody knows."""
    first = before[0]
    if len(before) == 1:
        if isinstance(what, (nn.Linear, *CONVOLUTIONS)):
            if first.doubt and is_thin(int(torch.count_nonzero(what.weight)), what.weight.shape[0]):
                return PERHAPS
            if isinstance(what, nn.Linear):
                return Units(_of_linear(what, first), -1)
            return Units(_of_convolution(what, first), 1)
        if _is_one_of(what, EACH_BY_ITSELF) or (_is_one_of(what, SUMS) and len(node.args) == 2):
            return first
        if isinstance(what, POOLS) and first.along == 1:
            return first
        if _flattens(what, node.args) and first.along is not None:
            return Units(first.live, -1, are_maps=first.along == 1 or first.are_maps)
    elif _is_one_of(what, SUMS) and len(before) == 2:
        return _summed(first, before[1])
    elif _is_one_of(what, JOINS):
        return _joined(before, node)
    if _is_one_of(what, SHAPES) and _keeps_the_first(node.args) and first.along is not None:
        return Units(first.live, -1, are_maps=first.along == 1 or first.are_maps)
    return None


def _summed(one: Units, other: Units) -> Units | None:
    """The units of a sum: what is live in either is live in it."""
    if one[1:] == other[1:] and one.along is not None and one.live.shape == other.live.shape:
        return one._replace(live=one.live | other.live)
    return LIVE if any(bool(units.live.all()) and not units.doubt for units in (one, other)) else None


def _flattens(what: Any, args: Sequence[Any]) -> bool:
    """Whether an operation makes one dimension of all but the first."""
    if isinstance(what, nn.Flatten):
        return bool(what.start_dim == 1 and what.end_dim == -1)
    return what in (torch.flatten, "flatten") and args[1:] == (1,)


def _keeps_the_first(args: Sequence[Any]) -> bool:
    """Whether `view` or `reshape` is called with the size of the batch and -1."""
    sizes = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    return len(sizes) == 2 and isinstance(sizes[0], fx.Node) and sizes[1] == -1


def _joined(before: Sequence[Units], node: fx.Node) -> Units | None:
    """The units of several values side by side, if that is how they are joined."""
    along = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim", 0)
    first = before[0]
    # The outputs of linear layers may have two dimensions, of which the last is dimension 1.
    if along != first.along and not (along == 1 and first.along == -1):
        return None
    if first.are_maps or any(units[1:] != first[1:] or units.live.dim() != 1 for units in before):
        return None
    return first._replace(live=torch.cat([units.live.cpu() for units in before]))


def _chunks(node: fx.Node, units: Units) -> list[Units]:
    """The parts that `chunk` makes of a value, with the units of each."""
    count, along = [*node.args[1:], *node.kwargs.values(), 0][:2]
    if not isinstance(count, int) or count < 1:
        return []
    if along == units.along and not units.are_maps and len(units.live) % count == 0:
        return [units._replace(live=part) for part in units.live.chunk(count)]
    return [LIVE._replace(doubt=max(units.doubt, int(not bool(units.live.all())))) if units.any else NO_UNITS] * count


def _has_thin_weights(module: nn.Module) -> bool:
    weights = [parameter for parameter in module.parameters() if parameter.dim() > 1]
    return any(is_thin(int(torch.count_nonzero(weight)), weight.shape[0]) for weight in weights)


def _is_one_of(what: Any, kinds: Iterable[Any]) -> bool:
    return any(what is kind or what == kind or (isinstance(kind, type) and type(what) is kind) for kind in kinds)


def _of_linear(layer: nn.Linear, before: Units) -> Tensor:
    kept = layer.weight != 0
    if before.along == -1 and layer.in_features % before.live.numel() == 0:
        places = layer.in_features // before.live.numel()
        live = before.live.repeat_interleave(places) if before.are_maps else before.live.repeat(places)
        kept &= live.to(kept.device)
    return kept.any(1)


def _of_convolution(layer: Any, before: Units) -> Tensor:
    weight: Tensor = layer.weight
    kept: Tensor = (weight != 0).flatten(2).any(2).unflatten(0, (layer.groups, -1))
    if before.along == 1 and before.live.numel() == layer.in_channels:
        kept &= before.live.to(kept.device).view(layer.groups, 1, -1)
    return kept.any(2).flatten()
