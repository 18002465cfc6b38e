"""Noticing that other code has changed a parameter."""

import torch
from torch import Tensor, nn

from pof.ranking.magnitude_bits import magnitude_bits

CHANGED = "changed"
SAMPLES = 64
"""How many values are compared, to notice changes that torch does not count (those made through `.data`)."""


class ChangeDetector:
    """Remembers where a parameter is, how often torch saw it change, and a few of its values."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self._parameter = parameter
        step = max(1, parameter.numel() // SAMPLES)
        self._places = torch.arange(0, parameter.numel(), step, device=parameter.device)
        self._sum: int | None = None
        self.accept()

    def accept(self) -> None:
        """Treat the parameter's present values as unchanged."""
        self._where = _where(self._parameter)
        self._version = _version(self._parameter)
        self._values = self._sample()

    def remember_all(self) -> None:
        """Remember a sum over all values, so that `same_values` can tell whether they have come back."""
        self._sum = _sum(self._parameter)

    def look_at_largest(self) -> None:
        """Also compare large magnitudes, which are zero only in the sparsest states."""
        flat = self._parameter.detach().reshape(-1)
        parts = flat[: flat.numel() // SAMPLES * SAMPLES].view(SAMPLES, -1)
        if parts.numel():
            largest = magnitude_bits(parts).argmax(dim=1)
            starts = torch.arange(SAMPLES, device=flat.device) * parts.shape[1]
            self._places = torch.cat([self._places, starts + largest])
            self._values = self._sample()

    def change(self) -> str | None:
        """What has happened to the parameter since `accept`; None if nothing has."""
        (device, dtype, *rest), (new_device, new_dtype, *new_rest) = self._where, _where(self._parameter)
        if new_device != device:
            return f"moved from {device} to {new_device}"
        if new_dtype != dtype:
            return f"changed from {dtype} to {new_dtype}"
        if new_rest != rest or _version(self._parameter) != self._version:
            return CHANGED
        return None if torch.equal(self._sample(), self._values) else CHANGED

    def same_values(self) -> bool:
        """Whether the parameter, wherever it lies now, most likely has the values that `remember_all` saw."""
        shape_and_type = (self._parameter.dtype, self._parameter.shape) == (self._where[1], self._where[3])
        return shape_and_type and _sum(self._parameter) == self._sum and torch.equal(self._sample(), self._values)

    def _sample(self) -> Tensor:
        # Compared as bytes: NaN is not equal to itself.
        return torch.take(self._parameter.detach(), self._places).view(torch.uint8)


def _sum(parameter: Tensor) -> int:
    """The sum of the magnitudes' bits over all values."""
    return int(magnitude_bits(parameter).sum(dtype=torch.int64))


def _where(parameter: Tensor) -> tuple[object, ...]:
    return parameter.device, parameter.dtype, parameter.data_ptr(), parameter.shape, parameter.stride()


def _version(parameter: Tensor) -> int | None:
    return None if parameter.is_inference() else parameter._version
