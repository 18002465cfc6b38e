"""Time calls fairly: they take turns, so that a busy moment of the machine hits all of them."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ROUNDS = 9


class Took(NamedTuple):
    """The milliseconds of several calls: the least, which noise affects least, and the median, which is typical."""

    least: float
    median: float


def in_turns(calls: Sequence[Callable[[], Any]], rounds: int, *, shuffled: bool = False) -> list[list[float]]:
    """The milliseconds of each call in each round, after one warm-up call.

    The calls take turns: otherwise the one that ran while the machine was busy would lose. `shuffled` also changes
    their order from round to round.
    """
    milliseconds: list[list[float]] = [[] for _ in calls]
    for call in calls:
        call()
    for number in range(rounds):
        order = range(len(calls))
        for place in random.Random(number).sample(order, len(calls)) if shuffled else order:
            start = time.perf_counter()
            calls[place]()
            milliseconds[place].append(1e3 * (time.perf_counter() - start))
    return milliseconds


def took(milliseconds: Sequence[float]) -> Took:
    """The least and the median of these milliseconds."""
    return Took(min(milliseconds), statistics.median(milliseconds))


@torch.no_grad()
def ratio_to_plain(fast: Callable[[Tensor], Any], model: nn.Module, images: Tensor, rounds: int = 15) -> float:
    """The speed-up of `fast` over `model` in the better of torch's two memory layouts."""
    plain = [images.contiguous(), images.contiguous(memory_format=torch.channels_last)]
    calls = [lambda: fast(images), lambda: model(plain[0]), lambda: model(plain[1])]
    compiled, *dense = in_turns(calls, rounds, shuffled=True)
    best = min(dense, key=statistics.median)
    return statistics.median(p / f for p, f in zip(best, compiled, strict=True))


@torch.no_grad()
def milliseconds_of(model: Callable[..., Any], example: Any, rounds: int = ROUNDS) -> float:
    """The median milliseconds of `model` on `example`: a tensor, a tuple of inputs, or a dict of inputs by name."""
    named = dict(example) if isinstance(example, Mapping) else {}
    inputs = () if named else tuple(example) if isinstance(example, (tuple, list)) else (example,)
    return took(in_turns([lambda: model(*inputs, **named)], rounds)[0]).median
