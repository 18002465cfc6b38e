"""The time of a training step when the C library keeps freed memory, as in `pof train`, and when it does not.

    python bench/kept_heap.py [--rounds 21]

Two processes, one of each kind, take turns to run a step on one thread. Prints JSON: the median milliseconds per step,
and the median of the ratios within a round (above 1: faster with kept memory).
"""

import argparse
import json
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

import torch
from torch.nn import functional as F

from pof.models import MODELS
from pof.trainer.kept_heap import keep_freed_memory
from timing import interleaved, machine, median_milliseconds, ratio

NAMES = ("resnet20", "mobilenet_v2_cifar")
BATCH = 128
KEPT, USUAL = "kept", "usual"


def main() -> None:
    """Measure, and print the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    result = {"bench": "kept_heap", "batch": BATCH, "rounds": rounds, "machine": machine(), "models": {}}
    for name in NAMES:
        seconds = interleaved({kind: _steps(name, kind) for kind in (KEPT, USUAL)}, rounds)
        result["models"][name] = {
            "milliseconds_a_step": median_milliseconds(seconds),
            "faster_with_kept_memory": ratio(seconds, USUAL, KEPT),
        }
    print(json.dumps(result, indent=2))


def _steps(name: str, kind: str) -> Callable[[], object]:
    """A function that runs one step in its own process."""
    spawn = get_context("spawn")
    here, there = spawn.Pipe()
    spawn.Process(target=_work, args=(there, name, kind), daemon=True).start()

    def step() -> object:
        here.send(None)
        return here.recv()

    return step


def _work(calls: Connection, name: str, kind: str) -> None:
    torch.set_num_threads(1)
    if kind == KEPT and not keep_freed_memory():
        raise SystemExit("this C library has no mallopt")
    model = MODELS[name](num_classes=10).to(memory_format=torch.channels_last)
    images = torch.randn(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(10, (BATCH,))
    while True:
        try:
            calls.recv()
        except EOFError:
            return
        F.cross_entropy(model(images), labels).backward()
        calls.send(None)


if __name__ == "__main__":
    main()
