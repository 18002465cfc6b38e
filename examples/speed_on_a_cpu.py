"""Unstructured zeros that save time: a pruned network with `pof.compile`, compared with torch.

    python examples/speed_on_a_cpu.py

It loads the CIFAR-10 network that comes with pof at several sparsities. For each it prints how long a batch of 16 takes
on one thread, in torch and compiled, and how far the compiled model's outputs are from torch's.
"""

import statistics
import time
from collections.abc import Callable

import torch

import pof
from pof.data import shipped


def milliseconds(*calls: Callable[[], object], rounds: int = 20) -> list[float]:
    """The median time of each call. The calls take turns, so that whatever else runs disturbs them alike."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, times in zip(calls, seconds, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [1000 * statistics.median(times) for times in seconds]


@torch.no_grad()
def main() -> None:
    """Print one row per sparsity, then the layers of the last compiled model."""
    torch.set_num_threads(1)
    model = pof.models.resnet20().eval()
    images = shipped.cifar10_sample()[0][:16]
    print("sparsity  torch, ms  pof, ms  times as fast  difference")
    for sparsity in (0.5, 0.7, 0.9):
        pof.load(shipped.network("cifar10-resnet20-nested"), into=model, sparsity=sparsity)
        fast = pof.compile(model, images)
        difference = float((fast(images) - model(images)).abs().max())
        plain, ours = milliseconds(lambda: model(images), lambda fast=fast: fast(images))
        print(f"{sparsity:8.0%}  {plain:9.1f}  {ours:7.1f}  {plain / ours:12.2f}x  {difference:10.1e}")
    print()
    print(fast.summary())


if __name__ == "__main__":
    main()
