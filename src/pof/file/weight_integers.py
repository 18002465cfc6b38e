"""Weights as integers: a float or an 8-bit level is split into sign, symbol and low bits. See SPEC.md."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pof.errors import PofError
from pof.file.number_types import ITEM_SIZES
from pof.ranking.magnitude_bits import all_finite

Integers = NDArray[Any]
"""An array of uint8, uint16 or uint32, as sign and magnitude."""

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_SIZES}
"""The torch types that a file can hold, by name."""


@dataclass(frozen=True)
class Stored:
    """How the weights of one tensor are written."""

    name: str
    integer: type[np.unsignedinteger]
    low_bits: int
    """The number of bits of a magnitude below its symbol."""

    @property
    def bytes(self) -> int:
        """The number of bytes of one weight."""
        return np.dtype(self.integer).itemsize

    @property
    def planes(self) -> int:
        """The number of streams of low bits; the sign is the top bit of the last one."""
        return (self.low_bits + 1) // 8

    @property
    def sign_bit(self) -> int:
        """The position of the sign bit, above the symbol."""
        return 8 * self.bytes - 1


FLOAT32 = Stored("float32", np.uint32, 23)
HALF = Stored("16-bit float", np.uint16, 7)
LEVELS = Stored("int8", np.uint8, 0)
KINDS = (FLOAT32, HALF, LEVELS)


def stored_kind(dtype: torch.dtype, values: str) -> Stored:
    """How a weight of `dtype` is written when the file's values are `values`."""
    if values == "int8":
        return LEVELS
    return FLOAT32 if dtype is torch.float32 and values == "exact" else HALF


def to_integers(weight: Tensor, values: str, scales: Tensor | None) -> Integers:
    """The flat weights as sign and magnitude: the sign in bit `sign_bit` (bit 7 for int8), the magnitude below."""
    flat = weight.detach().cpu().reshape(-1)
    if values == "int8":
        assert scales is not None
        levels = (weight / _spread(scales, weight)).round().clamp(-127, 127).to(torch.int8).reshape(-1).numpy()
        signed: Integers = np.abs(levels).astype(np.uint8) | (levels < 0).astype(np.uint8) << 7
        return signed
    if weight.dtype is torch.float32 and values == "fp16":
        flat = flat.to(torch.float16)
    integer = torch.int32 if flat.dtype is torch.float32 else torch.int16
    bits: Integers = flat.contiguous().view(integer).numpy().view(np.uint32 if integer is torch.int32 else np.uint16)
    return bits


def held_as(stored: Stored, dtype: torch.dtype) -> type[np.unsignedinteger]:
    """The integer type of the weights in memory: float16 is widened at once if the weight is float32."""
    return np.uint32 if stored is HALF and dtype is torch.float32 else stored.integer


def largest_symbol(stored: Stored, dtype: torch.dtype) -> int:
    """The largest symbol of a finite number; larger ones have the exponent of infinity."""
    if stored is LEVELS:
        return 127
    return 254 if stored is FLOAT32 or dtype is torch.bfloat16 else 0xF7


def widened(halves: Integers) -> Integers:
    """The integers of float16 numbers, converted to those of float32."""
    wide: Integers = torch.from_numpy(halves.view(np.float16)).float().numpy().view(np.uint32)  # numpy takes 5x as long
    return wide


def to_weight(
    integers: Integers, dtype: torch.dtype, shape: tuple[int, ...], values: str, scales: Tensor | None
) -> Tensor:
    """The inverse of `to_integers`: a tensor of `dtype`, or of float16 if it is stored so."""
    if values == "int8":
        assert scales is not None
        levels = torch.from_numpy((integers & 127).astype(np.float32))
        levels[torch.from_numpy(integers >= 128)] *= -1
        return (levels.reshape(shape) * _spread(scales, levels.reshape(shape))).to(dtype)
    if integers.dtype == np.uint32:
        return torch.from_numpy(integers.view(np.float32)).reshape(shape)
    half = torch.bfloat16 if dtype is torch.bfloat16 else torch.float16
    return torch.from_numpy(integers.view(np.int16)).view(half).reshape(shape)


def rounded(name: str, weight: Tensor, values: str) -> tuple[Tensor, Tensor | None]:
    """The weights as a reader will see them, and for `int8` the scale of each row."""
    weight = weight.detach().cpu().contiguous()
    if not all_finite(weight):
        raise PofError(f"weight {name!r} holds NaN or inf: exclude it, or load finite weights first")
    if values == "exact":
        return weight, None
    scales = None
    if values == "int8":
        scales = weight.float().abs().reshape(len(weight), -1).amax(1) / 127
        scales = torch.where(scales > 0, scales, 1.0)
    stored = to_weight(to_integers(weight, values, scales), weight.dtype, tuple(weight.shape), values, scales)
    stored = stored.to(weight.dtype)
    if not all_finite(stored):
        raise PofError(f"weight {name!r} has values beyond the range of float16: save with values='exact'")
    return stored, scales


def _spread(scales: Tensor, weight: Tensor) -> Tensor:
    return scales.reshape(-1, *[1] * (weight.dim() - 1))
