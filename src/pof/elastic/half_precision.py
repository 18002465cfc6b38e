"""Passes in bfloat16, where that takes less time: some CPUs compute with it, others emulate it."""

import time
from typing import Any

import torch
from torch import nn

from pof.elastic.batch_statistics import run_batch
from pof.elastic.output_distance import output_tensors

FASTER = 0.8
"""Half precision is used if it takes less than this share of the time."""


def autocast(model: nn.Module, half: bool) -> torch.autocast:
    """A block in which `model` runs in bfloat16 if `half`."""
    device = next((parameter.device.type for parameter in model.parameters()), "cpu")
    return torch.autocast(device, torch.bfloat16, enabled=half)


def half_precision_is_faster(model: nn.Module, batch: Any) -> bool:
    """Whether a pass of `model` and its gradients take clearly less time in bfloat16 here."""
    if any(parameter.dtype is not torch.float32 for parameter in model.parameters()):
        return False
    times = {}
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    try:
        for half in (False, True, False, True):
            began = time.monotonic()
            with torch.enable_grad(), autocast(model, half):
                outputs = output_tensors(run_batch(model, batch))
                total = sum((tensor.float().square().mean() for tensor in outputs.values()), torch.zeros(()))
                torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
            # The second of each counts: the first may set things up.
            times[half] = time.monotonic() - began
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    return times[True] < FASTER * times[False]
