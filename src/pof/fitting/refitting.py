"""Refitting all layers of a network by least squares, for every sparsity at once."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pof.fitting.layer_inputs import RefittableLayer, in_waves, input_grams
from pof.fitting.least_squares import damped, nested_least_squares, relative_error
from pof.planning.pruning_plan import Plan
from pof.ranking.cuts import find_cut, keep_mask
from pof.ranking.shares import band_counts
from pof.ranking.sparsity_state import Scope, pruned_state

STATES = (0.5, 0.7, 0.8, 0.9)
"""The sparsities that least squares looks at, beside the dense network."""
HOPELESS = 0.02
"""The error of a state counts in parts of what it was before, plus this share of the outputs.

So a state that a layer cannot serve any more does not spoil the others, the dense one least of all.
"""
DAMPING = 0.01
ROUNDS, ITERATIONS = 3, 8
"""How often the masks are found anew from the refitted weights, and steps of conjugate gradients in between."""

LayerErrors = dict[str, tuple[float, ...]]
"""For each weight, the share of its outputs' squares that is off at each of `STATES`."""


@torch.no_grad()
def refit(
    model: nn.Module,
    plan: Plan,
    layers: Sequence[RefittableLayer],
    batches: Iterable[Any],
    scope: Scope,
    seconds: float,
    report: Callable[[str], None],
) -> tuple[LayerErrors, LayerErrors]:
    """Refit the weights of `layers` in place; return the errors before and after.

    The inputs are those of the dense network. A refitted weight may be larger or smaller than its neighbours, so the
    masks are found anew from the refitted weights, a few times, as long as that takes less than `seconds`.
    """
    data, began = list(batches), time.monotonic()
    dense = {entry.name: model.get_parameter(entry.name).detach().clone() for entry in plan}
    found = {name: weight.clone() for name, weight in dense.items()}
    before: LayerErrors = {}
    after: LayerErrors = {}
    for wave in in_waves(layers):
        report("inputs of the layers")
        grams = {name: damped(gram, DAMPING) for name, gram in input_grams(model, wave, data).items()}
        for number in range(ROUNDS):
            if number and time.monotonic() - began > seconds:
                break
            masks = _masks(plan, found, scope)
            for layer in wave:
                if layer.name not in grams:
                    continue
                report(layer.name)
                if number == 0:
                    before[layer.name] = _errors(layer, dense, found, masks, grams)
                kept = [torch.ones_like(dense[layer.name]), *masks[layer.name]]
                solved = nested_least_squares(
                    layer.rows(dense[layer.name]).float(),
                    grams[layer.name],
                    [layer.rows(mask) for mask in kept],
                    [1.0 / (error + HOPELESS) for error in (0.0, *before[layer.name])],
                    start=layer.rows(found[layer.name]).float(),
                    iterations=ITERATIONS,
                )
                found[layer.name] = layer.as_weight(solved).to(dense[layer.name].dtype).contiguous()
        masks = _masks(plan, found, scope)
        after.update((layer.name, _errors(layer, dense, found, masks, grams)) for layer in wave if layer.name in grams)
    for name, weight in found.items():
        if bool(torch.isfinite(weight).all()):
            model.get_parameter(name).copy_(weight)
    return before, after


def _masks(plan: Plan, weights: Mapping[str, Tensor], scope: Scope) -> dict[str, list[Tensor]]:
    """For each weight its mask at each of `STATES`."""
    values = [weights[entry.name] for entry in plan]
    keys = values if scope == "global" else None
    counts = [band_counts([entry.size for entry in plan], keys, pruned_state(sparsity)) for sparsity in STATES]
    return {
        entry.name: [keep_mask(value, find_cut(value, each[i][1])) for each in counts]
        for i, (entry, value) in enumerate(zip(plan, values, strict=True))
    }


def _errors(
    layer: RefittableLayer,
    dense: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    masks: Mapping[str, Sequence[Tensor]],
    grams: Mapping[str, Tensor],
) -> tuple[float, ...]:
    wanted = layer.rows(dense[layer.name]).float()
    states = (layer.rows(found[layer.name] * mask).float() for mask in masks[layer.name])
    return tuple(relative_error(state, wanted, grams[layer.name]) for state in states)
