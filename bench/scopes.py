"""How fast `pof.compile` runs two `nested` networks, ranked globally and per layer, compared with torch.

    python bench/scopes.py [--rounds 31]

It uses one thread and 16 images of 32 x 32. Torch runs the plain model, in the better of its two memory layouts; all
take turns. Prints JSON. lab/records/cifar10-resnet20-nested.json and -nested-layer.json have the accuracies.
"""

import argparse
import json
import statistics
from functools import partial
from pathlib import Path

import torch
from torch import nn

import pof
from pof.data import shipped
from timing import interleaved, machine, ratio

FILES = {
    "global": shipped.network("cifar10-resnet20-nested"),
    "layer": Path(__file__).parents[1] / "lab" / "weights" / "cifar10-resnet20-nested-layer.pof",
}
STATES = ((0.0, None), (0.5, None), (0.7, None), (0.8, None), (0.85, None), (0.9, None), (0.9, 0.5))
IMAGES = 16


@torch.no_grad()
def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images = shipped.cifar10_sample()[0][:IMAGES]
    layouts = {"NCHW": images.contiguous(), "NHWC": images.contiguous(memory_format=torch.channels_last)}
    rows = []
    for sparsity, recover_from in STATES:
        networks = {scope: _network(file, sparsity, recover_from) for scope, file in FILES.items()}
        calls = {scope: partial(pof.compile(model, images, threads=1), images) for scope, model in networks.items()}
        plain = {name: partial(networks["layer"], inputs) for name, inputs in layouts.items()}
        seconds = interleaved({**calls, **plain}, options.rounds)
        torch_best = min(layouts, key=lambda name: statistics.median(seconds[name]))
        row = {scope: round(ratio(seconds, torch_best, scope), 2) for scope in FILES}
        rows.append({"sparsity": sparsity, "recover_from": recover_from, "times_as_fast_as_torch": row})
    found = {"bench": "scopes", "images_at_once": IMAGES, "rounds": options.rounds, "machine": machine(), "rows": rows}
    print(json.dumps(found, indent=2))


def _network(file: Path, sparsity: float, recover_from: float | None) -> nn.Module:
    model = pof.models.resnet20().eval()
    pof.load(file, into=model, sparsity=sparsity, recover_from=recover_from)
    return model


if __name__ == "__main__":
    main()
