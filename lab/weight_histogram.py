"""The values of one layer of a finished run, for the figure of weight distributions."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pof.ranking.cuts import find_cut, keep_mask
from pof.ranking.sparsity import prune_count
from pof.trainer.weight_files import read_weights

BINS, WIDEST = 60, 3.0
"""The bins go from -WIDEST to WIDEST, in units in which a Gaussian layer has a standard deviation of 1."""
SPARSITY = 0.6
"""The sparsity in the paper's figure."""


def weight_histogram(path: Path) -> dict[str, Any] | None:
    """Count the weights of the middle convolution by value: those that pruning removes and those that it keeps.

    Rows are scaled so that their norm is the square root of their length. Exact zeros are counted separately.
    """
    tensors = read_weights(path)
    kernels = [name for name in sorted(tensors) if tensors[name].dim() == 4 and tensors[name].shape[-1] > 1]
    if not kernels:
        return None
    name = kernels[len(kernels) // 2]
    rows = tensors[name].flatten(1).float()
    values = rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12) * rows.shape[1] ** 0.5
    kept = keep_mask(values, find_cut(values, prune_count(values.numel(), SPARSITY)))
    return {
        "layer": name,
        "widest": WIDEST,
        "zeros": int((values == 0).sum()),
        "pruned": _counts(values[~kept & (values != 0)]),
        "kept": _counts(values[kept]),
    }


def _counts(values: Tensor) -> list[int]:
    return torch.histc(values.clamp(-WIDEST, WIDEST), BINS, -WIDEST, WIDEST).int().tolist()
