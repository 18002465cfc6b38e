"""Which scale of the rows lets magnitudes tell most: tried on the network at hand, without labels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pof.elastic.batch_statistics import run_batch
from pof.elastic.output_distance import output_distance
from pof.fitting.fit_report import tensors_of
from pof.fitting.layer_inputs import RefittableLayer
from pof.fitting.row_balance import Balance, NormalisedLayer, balancing_factors, normalised_layers
from pof.planning.pruning_plan import Plan

CLEARLY, NEARLY = 1.1, 0.97
"""How much of what the outputs told before, or with the best way so far, a way must keep to be taken."""
WAYS = {
    "layers a little evened out": (Balance(0.25, 0.1, by_rows=False), NEARLY),
    "rows of equal size": (Balance(1.0, 0.0), CLEARLY),
    "rows of equal size, larger in small layers": (Balance(1.0, 0.25), CLEARLY),
}
"""Ways of balancing, and how much each must keep.

The first one makes ResNet-50 right more often at 80 and 90 %, though its outputs are no nearer (lab/notes.md).
"""
SAME = 1e-3
"""How far balancing may change the outputs by rounding, as a distance."""


def balance_if_it_helps(
    model: nn.Module,
    teacher: nn.Module,
    plan: Plan,
    layers: Sequence[RefittableLayer],
    sample: Sequence[Any],
    known: float,
    score: Callable[[], float],
) -> str:
    """Balance the rows of `model` in place if its outputs then tell clearly more; return how, or "" if not.

    `score` returns how much the outputs of `model` tell at some sparsities; `known` is that of the model as it is.
    """
    pairs = normalised_layers(model, layers, sample[0])
    if not pairs:
        return ""
    best, name = known, ""
    came = {key: tensor.clone() for key, tensor in tensors_of(model).items()}
    chosen = came
    for way, (balance, least) in WAYS.items():
        _write(model, came)
        _balance(plan, model, pairs, balance)
        if _is_same(model, teacher, sample[0]) and (found := score()) > least * best:
            best, name, chosen = found, way, {key: tensor.clone() for key, tensor in tensors_of(model).items()}
    _write(model, chosen)
    return name


def _balance(plan: Plan, model: nn.Module, pairs: Sequence[NormalisedLayer], way: Balance) -> None:
    balanced = {pair.layer.name for pair in pairs}
    others = [model.get_parameter(entry.name) for entry in plan if entry.name not in balanced]
    factors = balancing_factors(pairs, others, way)
    for pair in pairs:
        pair.scale_rows(factors[pair.layer.name])


@torch.no_grad()
def _is_same(model: nn.Module, teacher: nn.Module, batch: Any) -> bool:
    """Whether balancing has left what the network computes alone; an output may also be used elsewhere."""
    return float(output_distance(run_batch(model, batch), run_batch(teacher, batch))) < SAME


@torch.no_grad()
def _write(model: nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors_of(model).items():
        tensor.copy_(tensors[name])
