"""What `pof train` asks of the C library: freed memory stays, so that a step does not fault it in again."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from pof.models import resnet20
from pof.trainer.kept_heap import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
model, images = resnet20(), torch.zeros(64, 3, 32, 32)
for step in range(8):
    if step == 4:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    model(images).sum().backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's malloc is told so")
def test_the_memory_of_a_step_is_not_faulted_in_again() -> None:
    faults = {
        kind: int(subprocess.run([sys.executable, "-c", FAULTS, kind], capture_output=True, check=True).stdout)
        for kind in ("kept", "usual")
    }
    assert faults["kept"] < faults["usual"] / 4
