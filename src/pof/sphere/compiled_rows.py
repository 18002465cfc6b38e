"""Rows and their penalty in the compiled core, for weights stored row after row; torch does the others.

The formulas are those of `pof.ranking.row_norms` and `pof.sphere.hypersign`, in a few passes over memory where torch
takes twenty. On a small network, most of the penalty's cost is the overhead of starting operations.
"""

from ctypes import c_float, c_int64, c_void_p

import numpy as np
import torch
from torch import Tensor

from pof.core.library import address, core, int64
from pof.ranking.cuts import find_cut_of_bits
from pof.ranking.magnitude_bits import has_no_gaps
from pof.ranking.reused_buffers import ReusedBuffers
from pof.ranking.row_layout import RowLayout


def can_be_fast(weight: Tensor, layout: RowLayout) -> bool:
    """Whether the core is available and takes this weight, whose rows lie as `layout` says."""
    return (
        core() is not None
        and weight.device.type == "cpu"
        and weight.dtype is torch.float32
        and layout.is_plain
        and weight.numel() > 0
        and weight.stride(0) == weight.numel() // len(weight)
        and has_no_gaps(weight)
    )


def rescale_rows_fast(weight: Tensor, norms: Tensor) -> None:
    """Do as `pof.ranking.row_norms.rescale_rows`, for a weight that `can_be_fast`."""
    native, kept = core(), norms.contiguous()
    assert native is not None
    native.pof_rescale_rows(_at(weight), *_shape(weight), _at(kept))
    torch.autograd.graph.increment_version(weight)


def add_penalty_fast(
    weight: Tensor, prune: int, scale: float, grad: Tensor | None, buffers: ReusedBuffers
) -> Tensor | None:
    """Add `scale` times the gradient of L_tr, with `prune` weights masked, to `grad`.

    Returns the sum over rows of cos - 1, and the number of rows that have a mask. If the cut separates equal
    magnitudes, it does nothing and returns None: torch handles that case.
    """
    native = core()
    assert native is not None
    shape = _shape(weight)
    units, bits = buffers.like(weight, "units"), buffers.like(weight, "bits", torch.int32)
    norms, cosines, inverses = np.empty((3, len(weight)), np.float32)
    native.pof_unit_rows(_at(weight), *shape, _at(units), address(norms), _at(bits))
    cut = find_cut_of_bits(bits, prune)
    if cut is None:
        return None
    sums = np.empty(2, np.float64)
    # Zeros have no sign: they are never kept.
    value = c_float(max(cut, 0.0))
    native.pof_cosines(_at(units), *shape, value, address(cosines), address(inverses), address(sums))
    shortfall, count = float(sums[0]), max(1.0, float(sums[1]))
    if grad is not None:
        slope = c_float(2.0 * scale * shortfall / count)
        rows = (_at(units), address(norms), *shape, value, address(cosines), address(inverses))
        native.pof_add_penalty(*rows, slope, _at(grad))
    return torch.tensor([shortfall, count])


def _shape(weight: Tensor) -> tuple[c_int64, c_int64]:
    return int64(len(weight)), int64(weight.numel() // len(weight))


def _at(tensor: Tensor) -> c_void_p:
    return c_void_p(tensor.data_ptr())
