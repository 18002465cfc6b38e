"""Refitting all layers of a network by least squares, for every sparsity at once."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pof.elastic.half_precision import autocast
from pof.fitting.layer_inputs import RefittableLayer, in_waves, input_grams
from pof.fitting.least_squares import damped, nested_least_squares, relative_errors
from pof.fitting.row_balance import normalised_layers
from pof.planning.pruning_plan import Plan
from pof.ranking.cuts import find_cut, keep_mask
from pof.ranking.shares import GlobalRanking, share_alike
from pof.ranking.sparsity_state import Scope

SPARED, HOPELESS = 0.5, 0.02
"""The error of a state counts less, the larger it was before: by this power of it, plus this share of the outputs.

So a state that a layer cannot serve any more does not spoil the others, the dense one least of all. Larger powers keep
the dense network nearer and lose the high sparsities (lab/notes.md).
"""
DAMPING = 0.01
ROUNDS, ITERATIONS = 6, 8
"""How often the masks are found anew from the refitted weights, and steps of conjugate gradients in between."""
FEWEST = 3
"""The steps that are worth a round; the first round has so many even if there is no time for them."""

LayerErrors = dict[str, tuple[float, ...]]
"""For each weight, the share of its outputs' squares that is off at each sparsity that was refitted."""


@torch.no_grad()
def refit(
    model: nn.Module,
    plan: Plan,
    layers: Sequence[RefittableLayer],
    batches: Iterable[Any],
    scope: Scope,
    sparsities: Sequence[float],
    seconds: float,
    report: Callable[[str], None],
    half: bool = False,
) -> tuple[LayerErrors, LayerErrors]:
    """Refit the weights of `layers` in place; return the errors before and after.

    Each of `sparsities` is served, and the dense network. The inputs are those of the dense network, which runs in
    bfloat16 if `half`, without their means if a BatchNorm follows. A refitted weight may be larger or smaller than its
    neighbours, so the masks are found anew from the refitted weights, a few times, as long as that takes less than
    `seconds`. That may also go wrong, so the best round counts.
    """
    data, end = list(batches), time.monotonic() + seconds
    dense = {entry.name: model.get_parameter(entry.name).detach().clone() for entry in plan}
    found = {name: weight.clone() for name, weight in dense.items()}
    before: LayerErrors = {}
    after: LayerErrors = {}
    # BatchNorm takes the mean of its inputs out, and in each state it has one of its own.
    centred = {pair.layer.name for pair in normalised_layers(model, layers, data[0])}
    waves = list(in_waves(layers))
    for place, wave in enumerate(waves):
        report("inputs of the layers")
        with autocast(model, half):
            products = input_grams(model, wave, data, centred)
        grams = {name: damped(gram, DAMPING) for name, gram in products.items()}
        seen = [layer for layer in wave if layer.name in grams]
        masks = _masks(plan, found, scope, sparsities)
        began = time.monotonic()
        errors = {layer.name: _errors(layer, dense, found, masks, grams) for layer in seen}
        # What a step of conjugate gradients takes: it computes the same products.
        unit = max(time.monotonic() - began, 1e-6)
        shares = {name: [(error + HOPELESS) ** -SPARED for error in each] for name, each in errors.items()}
        before.update(errors)
        best, least = dict(found), _total(errors, shares)
        for number in range(ROUNDS):
            left = (end - time.monotonic()) / (len(waves) - place)
            # A round also computes where it begins, and its errors.
            iterations = min(ITERATIONS, int(left / unit) - 2)
            if number and iterations < FEWEST:
                break
            for layer in seen:
                report(layer.name)
                solved = nested_least_squares(
                    layer.rows(dense[layer.name]).float(),
                    grams[layer.name],
                    [layer.rows(mask) for mask in masks[layer.name]],
                    shares[layer.name],
                    start=layer.rows(found[layer.name]).float(),
                    iterations=max(FEWEST, iterations),
                )
                found[layer.name] = layer.as_weight(solved).to(dense[layer.name].dtype).contiguous()
            masks = _masks(plan, found, scope, sparsities)
            now = {layer.name: _errors(layer, dense, found, masks, grams) for layer in seen}
            if (total := _total(now, shares)) < least:
                best, least, errors = dict(found), total, now
        found = best
        after.update(errors)
    for name, weight in found.items():
        if bool(torch.isfinite(weight).all()):
            model.get_parameter(name).copy_(weight)
    return _without_dense(before), _without_dense(after)


def _total(errors: LayerErrors, shares: Mapping[str, Sequence[float]]) -> float:
    """What the errors of all layers and states count together; infinite if one is not a number."""
    total = sum(c * error for name, each in errors.items() for c, error in zip(shares[name], each, strict=True))
    return total if math.isfinite(total) else math.inf


def _without_dense(errors: LayerErrors) -> LayerErrors:
    return {name: each[1:] for name, each in errors.items()}


def _masks(
    plan: Plan, weights: Mapping[str, Tensor], scope: Scope, sparsities: Sequence[float]
) -> dict[str, list[Tensor]]:
    """For each weight its mask in the dense network, where all are kept, and at each of `sparsities`."""
    values = [weights[entry.name] for entry in plan]
    if scope == "global":
        ranking = GlobalRanking(values, many=True)
        counts = [ranking.counts(sparsity) for sparsity in sparsities]
    else:
        counts = [share_alike([entry.size for entry in plan], sparsity) for sparsity in sparsities]
    return {
        entry.name: [torch.ones_like(value), *(keep_mask(value, find_cut(value, each[i])) for each in counts)]
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
    states = [layer.rows(found[layer.name] * mask).float() for mask in masks[layer.name]]
    return relative_errors(states, wanted, grams[layer.name])
