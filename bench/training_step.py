"""What pof.attach adds to a plain training step of ResNet-18 (224x224, batch 16).

    python bench/training_step.py [--rounds 31] [--batch 16] [--threads N]

Prints JSON: medians, and the median of the ratios within a round. Two equal models train side by side.
"""

import argparse
import json
from collections.abc import Callable

import torch
from torch.nn import functional as F

import pof
from timing import interleaved, machine, median_milliseconds, ratio


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=None)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    seconds = interleaved(
        {"plain": _stepper(options.batch, attach=False), "pof.attach": _stepper(options.batch, attach=True)},
        options.rounds,
    )
    result = {
        "bench": "training_step",
        "model": "resnet18",
        "batch": options.batch,
        "milliseconds": median_milliseconds(seconds),
        "times_the_plain_step": ratio(seconds, "pof.attach", "plain"),
        "rounds": options.rounds,
        "machine": machine(),
    }
    print(json.dumps(result, indent=2))


def _stepper(batch: int, *, attach: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    model = pof.models.resnet18().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    if attach:
        pof.attach(model, optimizer, tr=(0.9, 0.7), steps=1000)
    images = torch.randn(batch, 3, 224, 224).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,))

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
