"""One weight of a `PrunedPass`: its dense values are kept during a block and put back after it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from pof.elastic.change_detector import ChangeDetector
from pof.elastic.live_model import find_parameter, is_same
from pof.planning.entry import Entry

Fill = Callable[[Tensor], object]
"""Writes the values that a weight has inside a block into a tensor."""


class PassWeight:
    """A parameter, memory for its dense values during a block, and a detector of changes."""

    def __init__(self, entry: Entry, parameter: nn.Parameter) -> None:
        self.entry, self.parameter = entry, parameter
        # A tensor made under inference_mode could not be written outside of it.
        with torch.inference_mode(False):
            self.dense = torch.empty_like(parameter.detach())
        self.detector = ChangeDetector(parameter)
        self.detector.look_at_largest()

    def is_in(self, model: nn.Module) -> bool:
        """Whether the model still has this parameter under all its names, with the same shape, type and device."""
        live, kept = find_parameter(model, self.entry.name), self.dense
        others = [find_parameter(model, name) for name in self.entry.tied]
        if live is not self.parameter or not all(is_same(live, other) for other in others):
            return False
        return (live.shape, live.dtype, live.device) == (kept.shape, kept.dtype, kept.device)

    def is_changed(self, fill: Fill) -> bool:
        """Whether the parameter is not what `fill` wrote. An inner block that wrote it has also put it back."""
        if self.detector.change() is None:
            return False
        if self.parameter.shape != self.dense.shape or self.parameter.dtype is not self.dense.dtype:
            return True
        expected = torch.empty_like(self.dense)
        fill(expected)
        return not torch.equal(expected, self.parameter.detach().to(expected.device))

    @torch.no_grad()
    def copy_dense(self) -> None:
        """Remember the dense values."""
        self.dense.copy_(self.parameter)

    @torch.no_grad()
    def write_dense(self) -> None:
        """Write the dense values back, unless the parameter now has another shape."""
        if self.parameter.shape == self.dense.shape:
            self.parameter.copy_(self.dense)
