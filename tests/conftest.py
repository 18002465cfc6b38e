"""Settings for all tests."""

import os

# Some virtual machines announce AMX and cannot run it: torch's bfloat16 products end in an illegal instruction there.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_worker() -> None:
    # The suite runs in as many processes as there are cores; more threads would only wait for each other.
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
