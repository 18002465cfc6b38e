"""Time calls fairly: they take turns, so that a busy moment of the machine hits all of them."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

ROUNDS = 9
MOST_PAIRS = 201
"""The most pairs of calls in a comparison: of a small model there would be thousands in a second."""


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


class Compared(NamedTuple):
    """Two calls that took turns."""

    milliseconds: float
    """The median of the first one."""
    ratio: float
    """How many times as fast the second one is: the median over the pairs of calls."""


def compared(plain: Callable[[], Any], fast: Callable[[], Any], seconds: float, least: int) -> Compared:
    """Call both in turns, for at most so many seconds but in at least so many pairs, and compare the calls of a pair.

    A busy moment of the machine hits both calls of a pair, or is an outlier that the median leaves out.
    """
    plain(), fast()
    began, times, ratios = time.perf_counter(), list[float](), list[float]()
    while len(ratios) < least or (
        len(ratios) < MOST_PAIRS and not _settled(ratios, time.perf_counter() - began, seconds)
    ):
        took_each = [0.0, 0.0]
        for place in (0, 1) if len(ratios) % 2 else (1, 0):
            start = time.perf_counter()
            (plain, fast)[place]()
            took_each[place] = time.perf_counter() - start
        times.append(1e3 * took_each[0])
        ratios.append(took_each[0] / took_each[1])
    return Compared(statistics.median(times), statistics.median(ratios))


def _settled(ratios: Sequence[float], passed: float, seconds: float) -> bool:
    """Whether the time is over, or the median of the ratios is known to 1 %."""
    if passed > seconds or len(ratios) < ROUNDS or passed < seconds / 5:
        return passed > seconds
    first, median, last = statistics.quantiles(ratios, n=4)
    return bool((last - first) / len(ratios) ** 0.5 < 0.01 * median)


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
