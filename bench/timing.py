"""Interleaved timing: every candidate runs once per round, so that a slow moment of the machine hits all of them."""

import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

import pof


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each candidate in each round, after a warm-up round; the order within a round is random."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    shuffle = random.Random(0).shuffle
    for round_number in range(rounds + 1):
        names = list(candidates)
        shuffle(names)
        for name in names:
            start = time.perf_counter()
            candidates[name]()
            if round_number > 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def median_milliseconds(seconds: Mapping[str, list[float]]) -> dict[str, float]:
    """The median milliseconds of each candidate."""
    return {name: round(1e3 * statistics.median(times), 2) for name, times in seconds.items()}


def ratio(seconds: Mapping[str, list[float]], name: str, peer: str) -> float:
    """How many times as long as `peer` the candidate `name` takes: the median of the ratios within a round."""
    return round(statistics.median(a / b for a, b in zip(seconds[name], seconds[peer], strict=True)), 4)


def machine() -> dict[str, object]:
    """The facts about this machine that a reader needs to compare figures."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "pof": pof.__version__,
        "commit": _commit(),
    }


def _commit() -> str | None:
    """The measured commit, with a plus sign if the tree had changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        git = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    except OSError:
        return None
    return git.stdout.strip() or None
