"""Memory that is reused: a fresh large tensor costs more in page faults than the arithmetic done in it."""

import torch
from torch import Tensor


class ReusedBuffers:
    """Hands out uninitialised tensors. A tensor is valid until the next one is asked for from the same slot."""

    def __init__(self) -> None:
        self._slots: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._strides: dict[tuple[torch.Size, tuple[int, ...]], tuple[int, ...]] = {}

    def like(self, tensor: Tensor, slot: str, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor with the shape, memory layout and device of `tensor`."""
        key = (slot, dtype or tensor.dtype, tensor.device)
        buffer = self._slots.get(key)
        if buffer is None or buffer.numel() < tensor.numel():
            # A buffer made in inference_mode could not be written outside it.
            with torch.inference_mode(False):
                buffer = self._slots[key] = torch.empty(tensor.numel(), dtype=key[1], device=tensor.device)
        layout = (tensor.shape, tensor.stride())
        if layout not in self._strides:
            # If `tensor` has gaps, torch decides what the same layout without them is.
            self._strides[layout] = torch.empty_like(tensor, device="meta").stride()
        return buffer.as_strided(tensor.shape, self._strides[layout])
