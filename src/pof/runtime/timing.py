"""Fair comparisons: calls that take turns, and the median of their ratios."""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pof.runtime.compiled import CompiledModel


@torch.no_grad()
def ratio_to_plain(fast: CompiledModel, model: nn.Module, images: Tensor, rounds: int = 15) -> float:
    """How many times as fast as `model`, in the better of torch's two memory layouts."""
    plain = [images.contiguous(), images.contiguous(memory_format=torch.channels_last)]
    calls: dict[str, Callable[[], Any]] = {
        "fast": lambda: fast(images),
        "NCHW": lambda: model(plain[0]),
        "NHWC": lambda: model(plain[1]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for number in range(rounds):
        for name in random.Random(number).sample(list(calls), len(calls)):
            start = time.perf_counter()
            calls[name]()
            seconds[name].append(time.perf_counter() - start)
    best = min(("NCHW", "NHWC"), key=lambda name: statistics.median(seconds[name]))
    return statistics.median(p / f for p, f in zip(seconds[best], seconds["fast"], strict=True))
