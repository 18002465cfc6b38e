"""What BatchNorm statistics in a `.pof` file gain, and what they cost.

    python bench/stored_statistics.py [--images 10000]              needs CIFAR-10

The network is our dense CIFAR-10 ResNet-20, pruned without any training. Statistics are estimated from 2,000 augmented
training images for a grid of sparsities, and stored in the file; between two of them, they are interpolated. Each state
is tested with the statistics of the dense network, with those of the file, and with its own, estimated on the spot. The
states lie between the points of the grids. Prints JSON.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import nn

import pof
from pof.data import cifar10
from pof.trainer.accuracy_sweep import calibration_batches

WEIGHTS = Path(__file__).parent.parent / "lab" / "weights" / "cifar10-resnet20-dense.pof"
TESTED = (0.55, 0.65, 0.75, 0.79, 0.81, 0.85, 0.87)
GRIDS: dict[str, Sequence[float] | None] = {
    "default": None,
    "every 0.1": [round(0.1 * i, 1) for i in range(1, 10)],
    "every 0.05": [round(0.05 * i, 2) for i in range(1, 20)],
    "every 0.02": [round(0.02 * i, 2) for i in range(1, 49)],
}


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=10_000)
    options = parser.parse_args()
    data = cifar10()
    tests = list(islice(data.test_batches(125), -(-options.images // 125)))
    batches = list(calibration_batches(data))
    model = pof.models.resnet20().eval()
    pof.load(WEIGHTS, into=model)
    rows = {}
    elastic = pof.Elastic(model)
    for sparsity in TESTED:
        with elastic.at(sparsity):
            rows[sparsity] = {"dense statistics": _accuracy(model, tests)}
            elastic.calibrate(batches)
            rows[sparsity]["own statistics"] = _accuracy(model, tests)
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pof"
        sizes["none"] = pof.save(model, path)
        for name, grid in GRIDS.items():
            sizes[name] = pof.save(model, path, calibrate=batches, states=grid)
            for sparsity in TESTED:
                copied = pof.models.resnet20().eval()
                pof.load(path, into=copied, sparsity=sparsity)
                rows[sparsity][name] = _accuracy(copied, tests)
    result = {
        "bench": "stored_statistics",
        "accuracy": [{"sparsity": sparsity, **row} for sparsity, row in rows.items()],
        "bytes": sizes,
        "test_images": options.images,
    }
    print(json.dumps(result, indent=2))


@torch.no_grad()
def _accuracy(model: nn.Module, tests: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in tests)
    return right / sum(len(labels) for _, labels in tests)


if __name__ == "__main__":
    main()
