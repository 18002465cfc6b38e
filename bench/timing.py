"""Interleaved timing: every candidate runs once a round, so that a slow moment of the machine hits all of them."""

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping

import torch

import pof


def interleaved(candidates: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """The median seconds of each candidate over `rounds`, after one round to warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for round_number in range(rounds + 1):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            if round_number > 0:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def machine() -> dict[str, object]:
    """What a reader needs to know to compare figures."""
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
    """The commit that was measured; with a plus sign if the tree had changes."""
    git = subprocess.run(["git", "describe", "--always", "--dirty=+"], capture_output=True, text=True, check=False)
    return git.stdout.strip() or None
