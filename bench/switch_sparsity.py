"""How fast a ResNet-50 changes its sparsity, compared with torch's own pruning and with a plain copy of the weights.

    python bench/switch_sparsity.py [--rounds 15] [--threads 1]

Prints JSON: medians over rounds in which every candidate runs once, and medians of the ratios within a round. The
sparsities of a round are new to pof ("new"), or have been used before ("seen").
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.nn.utils import prune as torch_prune

import pof
from timing import interleaved, machine, median_milliseconds, ratio


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)

    model = pof.models.resnet50()
    elastic = pof.Elastic(model)
    start = time.perf_counter()
    elastic.prune(0.5)
    first_call = time.perf_counter() - start

    on_sphere = pof.Elastic(pof.models.resnet50(), magnitudes="unit")
    on_sphere.prune(0.5)
    peer_layers = _peer_layers(elastic.plan)
    copies = [(torch.empty_like(p), p.detach()) for p in elastic.plan.parameters(model).values()]
    fresh = iter(0.3 + 0.0007 * i for i in range(1, 10_000))
    seen = [0.9, 0.7]
    for sparsity in seen:
        elastic.prune(sparsity)

    def switch_seen() -> None:
        seen.reverse()
        elastic.prune(seen[0])

    seconds = interleaved(
        {
            "torch l1_unstructured + remove": lambda: _torch_prune(peer_layers, 0.7),
            "pof, new sparsity": lambda: elastic.prune(next(fresh)),
            "pof, sparsity seen before": switch_seen,
            "pof, recover": lambda: elastic.recover(0.3, next(fresh)),
            "pof, restore": elastic.restore,
            "pof, unit magnitudes, new sparsity": lambda: on_sphere.prune(next(fresh)),
            "plain copy": lambda: [target.copy_(source) for target, source in copies],
        },
        options.rounds,
    )
    weights = elastic.plan.weights
    result = {
        "bench": "switch_sparsity",
        "model": "resnet50",
        "weights": weights,
        "milliseconds": median_milliseconds(seconds),
        "first_call_milliseconds": round(first_call * 1e3, 1),
        "times_faster_than_torch": ratio(seconds, "torch l1_unstructured + remove", "pof, new sparsity"),
        "times_a_plain_copy": ratio(seconds, "pof, new sparsity", "plain copy"),
        "times_a_plain_copy_when_seen_before": ratio(seconds, "pof, sparsity seen before", "plain copy"),
        "times_faster_than_torch_with_unit_magnitudes": ratio(
            seconds, "torch l1_unstructured + remove", "pof, unit magnitudes, new sparsity"
        ),
        "bytes_a_weight_beside_the_dense_copy": round(elastic.nbytes / weights, 4),
        "rounds": options.rounds,
        "machine": machine(),
    }
    print(json.dumps(result, indent=2))


def _peer_layers(plan: pof.Plan) -> list[nn.Module]:
    """Layers of the same shapes, so that torch's pruning leaves the model under test alone."""
    layers = []
    for entry in plan:
        layer = nn.Module()
        layer.weight = nn.Parameter(torch.randn(entry.shape))
        layers.append(layer)
    return layers


def _torch_prune(layers: list[nn.Module], sparsity: float) -> None:
    for layer in layers:
        torch_prune.l1_unstructured(layer, "weight", amount=sparsity)
        torch_prune.remove(layer, "weight")


if __name__ == "__main__":
    main()
