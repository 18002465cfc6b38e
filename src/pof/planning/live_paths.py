"""Whether the outputs of a model still depend on its inputs, or no path of weights is left between them.

A network of tiny layers can die although each layer has weights: the only one that a layer keeps may read a unit whose
own row is empty. The graph of the model is traced, and each unit (a channel, a feature) is live if a weight leads to it
from a live one. What is not understood counts as live, so nothing is called dead that is not.
"""

import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from pof.errors import warn
from pof.planning.traced_graph import traced_graph
from pof.ranking.sparsity_state import DENSE, State

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
EACH_BY_ITSELF = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Sigmoid, nn.Tanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.Identity, nn.Dropout, nn.Dropout2d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    *(torch.relu, torch.sigmoid, torch.tanh, F.relu, F.gelu, F.silu, F.sigmoid, F.tanh, F.dropout),
    *("relu", "relu_", "sigmoid", "tanh", "contiguous", "clone"),
)
"""Modules, functions and methods after which each unit is made of the same unit before."""
SUMS = (operator.add, operator.iadd, operator.sub, operator.mul, torch.add, torch.mul)


class Units(NamedTuple):
    """Which units of a value depend on the inputs."""

    live: Tensor
    """One boolean for all units, or one for each."""
    along: int | None = None
    """The dimension in which they lie: 1 or -1; None for one boolean."""


NO_UNITS, LIVE = Units(torch.tensor(False)), Units(torch.tensor(True))
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
                warn(
                    f"{state}, a layer has {fewest} weights left, and this model cannot be followed: perhaps "
                    "the outputs are the same for every input. Try it, prune less, or exclude small layers"
                )
            return
        end = dead_end(self._model, self._graph)
        if end is not None:
            warn(
                f"{state}, the outputs are the same for every input, as no path of weights leads through {end!r}: "
                "prune less, or exclude small layers"
            )


@torch.no_grad()
def dead_end(model: nn.Module, graph: fx.Graph) -> str | None:
    """The first layer that nothing of the inputs comes through, if the outputs of `model` do not depend on them."""
    found: dict[fx.Node, Units] = {}
    ends: list[str] = []
    for node in graph.nodes:
        before = [found[each] for each in node.all_input_nodes]
        if node.op == "output":
            return ends[0] if ends and not any(bool(units.live.any()) for units in before) else None
        found[node] = LIVE if node.op == "placeholder" else _after(model, node, before)
        alive = any(bool(units.live.any()) for units in before)
        if node.op == "call_module" and alive and not bool(found[node].live.any()):
            ends.append(str(node.target))
    return None


def _after(model: nn.Module, node: fx.Node, before: list[Units]) -> Units:
    """Which units are live behind `node`."""
    mixed = LIVE if any(bool(units.live.any()) for units in before) else NO_UNITS
    if mixed is NO_UNITS:
        return NO_UNITS
    what: Any = model.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    if len(before) == 1:
        if isinstance(what, nn.Linear):
            return Units(_of_linear(what, before[0]), -1)
        if isinstance(what, CONVOLUTIONS):
            return Units(_of_convolution(what, before[0]), 1)
        if _is_one_of(what, EACH_BY_ITSELF) or (_is_one_of(what, SUMS) and len(node.args) == 2):
            return before[0]
        if isinstance(what, POOLS):
            return before[0] if before[0].along == 1 else mixed
        flat = isinstance(what, nn.Flatten) and what.start_dim == 1 and what.end_dim == -1
        if flat or (what in (torch.flatten, "flatten") and node.args[1:] == (1,)):
            return Units(before[0].live, -1) if before[0].along is not None else mixed
    elif _is_one_of(what, SUMS) and len(before) == 2:
        one, other = before
        if one.along == other.along is not None and one.live.shape == other.live.shape:
            return Units(one.live | other.live, one.along)
    return mixed


def _is_one_of(what: Any, kinds: Iterable[Any]) -> bool:
    return any(what is kind or what == kind or (isinstance(kind, type) and type(what) is kind) for kind in kinds)


def _of_linear(layer: nn.Linear, before: Units) -> Tensor:
    kept = layer.weight != 0
    if before.along == -1 and layer.in_features % before.live.numel() == 0:
        # Flattened maps: each channel is so many features.
        live = before.live.repeat_interleave(layer.in_features // before.live.numel())
        kept &= live.to(kept.device)
    return kept.any(1)


def _of_convolution(layer: Any, before: Units) -> Tensor:
    weight: Tensor = layer.weight
    kept: Tensor = (weight != 0).flatten(2).any(2).unflatten(0, (layer.groups, -1))
    if before.along == 1 and before.live.numel() == layer.in_channels:
        kept &= before.live.to(kept.device).view(layer.groups, 1, -1)
    return kept.any(2).flatten()
