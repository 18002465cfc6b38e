"""Noticing that somebody else changed a parameter."""

import torch
from torch import Tensor, nn

from pof.magnitude import has_no_gaps, in_memory_order

CHANGED = "changed"
SAMPLES = 64
"""Values that are compared, for changes which torch does not count (those made through `.data`)."""


class Watch:
    """Remembers where a parameter is, how often torch saw it change, and a few of its values."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter
        self.accept()

    def accept(self) -> None:
        """Take the parameter as it is now as unchanged."""
        parameter = self._parameter
        self._place = (parameter.device, parameter.dtype, parameter.data_ptr(), parameter.shape)
        self._version = _version(parameter)
        self._view = _samples(parameter.detach())
        self._values = self._view.clone()

    def change(self) -> str | None:
        """What happened to the parameter since; None if nothing."""
        parameter = self._parameter
        device, dtype, address, shape = self._place
        if parameter.device != device:
            return f"moved from {device} to {parameter.device}"
        if parameter.dtype != dtype:
            return f"changed from {dtype} to {parameter.dtype}"
        if (parameter.data_ptr(), parameter.shape) != (address, shape) or _version(parameter) != self._version:
            return CHANGED
        return None if torch.equal(self._view, self._values) else CHANGED


def _version(parameter: Tensor) -> int | None:
    return None if parameter.is_inference() else parameter._version


def _samples(live: Tensor) -> Tensor:
    """A view of values spread over the whole parameter; where its memory has gaps, of the first of each row."""
    if not has_no_gaps(live):
        while live.dim() > 1:
            live = live[..., 0]
        return live
    return in_memory_order(live)[:: max(1, live.numel() // SAMPLES)]
