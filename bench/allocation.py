"""Compare sparsities per layer, from `Elastic.sensitivity`, with one for all layers, on the networks in the package.

    python bench/allocation.py [--images 1000] [--sparsities 0.7,0.8,0.9]

The sensitivity is measured by the loss on training images, the accuracy on all 10,000 CIFAR-10 test images. For the
accuracy of both, BatchNorm statistics are re-estimated from 2,000 training images. Prints JSON.
"""

import argparse
import json
from itertools import islice

import torch
from torch import nn
from torch.nn import functional as F

import pof
from pof.data import DATASETS, shipped
from pof.trainer.accuracy_sweep import accuracy, calibration_batches
from pof.trainer.kept_heap import keep_freed_memory
from timing import machine

BATCH = 125


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--sparsities", default="0.7,0.8,0.9")
    options = parser.parse_args()
    keep_freed_memory()
    data = DATASETS["cifar10"]()
    batches = list(islice(data.train_batches(BATCH, seed=1, epoch=0), options.images // BATCH))

    @torch.no_grad()
    def score(model: nn.Module) -> float:
        """The negative loss on the training images."""
        losses = [F.cross_entropy(model(images), labels, reduction="sum") for images, labels in batches]
        return -float(sum(losses)) / options.images

    result = {"bench": "allocation", "images": options.images, "test_images": 10_000, "machine": machine()}
    result["networks"] = {}
    for name in ("dense", "nested"):
        model = pof.models.resnet20().eval()
        pof.load(shipped.network(f"cifar10-resnet20-{name}"), into=model)
        found = pof.Elastic(model).sensitivity(score)
        rows = {}
        for sparsity in (float(part) for part in options.sparsities.split(",")):
            shared = pof.Elastic(model, sparsities=found.allocate(sparsity))
            rows[f"{sparsity:g}"] = {
                kind: _accuracy(model, elastic, sparsity, data)
                for kind, elastic in (("even", pof.Elastic(model)), ("shared", shared))
            }
        result["networks"][name] = rows
    print(json.dumps(result, indent=2))


def _accuracy(model: nn.Module, elastic: pof.Elastic, sparsity: float, data: object) -> dict[str, float]:
    with elastic.at(sparsity):
        elastic.calibrate(calibration_batches(data))
        return {"sparsity": round(elastic.sparsity, 4), "accuracy": accuracy(model, data)}


if __name__ == "__main__":
    main()
