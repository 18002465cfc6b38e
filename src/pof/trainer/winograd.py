"""Faster 3 x 3 convolutions for training on a CPU: Winograd's F(4 x 4, 3 x 3), in the compiled core.

    y = A^T [ (G w G^T) * (B^T x B) ] A    for each tile of 4 x 4 outputs;  36 products instead of 144

Within `winograd_convolutions()` every convolution that fits is computed this way, forward and backward, whoever calls
it; no model is changed. A convolution fits if it runs on a CPU in float32 and channels_last, is 3 x 3 with stride 1 and
padding 1, has neither groups nor bias, has channels in multiples of 16 up to 128, and maps with sides in multiples of
4. Torch computes the rest, and everything under autocast, torch.func and torch.compile. Results can be differentiated
once.

Reference: A. Lavin, S. Gray, Fast Algorithms for Convolutional Neural Networks, CVPR 2016.
"""

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from pof.core.library import core, int64
from pof.core.structures import WinogradStruct

POSITIONS = 36
MOST_CHANNELS = 128
"""With more channels, the transformed weights leave the cache."""
_G = (
    (1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)  # fmt: skip


class winograd_convolutions(TorchFunctionMode):  # noqa: N801 - used as a function
    """A context in which convolutions that fit are computed by Winograd's method."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Take over convolutions that fit."""
        if func is torch.conv2d and len(args) > 1 and fits(*args, **(kwargs or {})):
            return _Convolution.apply(*args[:2])  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def fits(
    x: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> bool:
    """Whether this convolution can be computed here."""
    return (
        # Memory is read directly, so subclasses that only look like tensors do not fit.
        type(x) is Tensor
        and type(weight) in (Tensor, nn.Parameter)
        and not torch._C._are_functorch_transforms_active()
        and bias is None
        and weight.shape[2:] == (3, 3)
        and (stride, padding, dilation, groups) in (((1, 1), (1, 1), (1, 1), 1), (1, 1, 1, 1))
        and x.dim() == 4
        and all(channels % 16 == 0 and 0 < channels <= MOST_CHANNELS for channels in weight.shape[:2])
        and x.shape[1] == weight.shape[1]
        and all(side % 4 == 0 and side > 0 for side in x.shape[2:])
        and len(x) > 0
        and x.dtype is weight.dtype is torch.float32
        and x.device.type == weight.device.type == "cpu"
        and x.is_contiguous(memory_format=torch.channels_last)
        and not (x.is_neg() or torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling())
        and is_there()
    )


def is_there() -> bool:
    """Whether the core has Winograd's method, and this machine can run it."""
    native = core()
    return native is not None and hasattr(native, "pof_has_winograd") and bool(native.pof_has_winograd())


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _convolve(x, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].contiguous(memory_format=torch.channels_last).resolve_neg()
        to_x, to_weight = ctx.needs_input_grad
        with torch.autocast("cpu", enabled=False):
            return (
                _convolve(gradient, weight.flip(2, 3).transpose(0, 1)) if to_x else None,
                _weight_gradient(x, gradient, weight) if to_weight else None,
            )


def _convolve(x: Tensor, weight: Tensor) -> Tensor:
    images, ins, height, width = x.shape
    outs = len(weight)
    transformed = _transform() @ weight.permute(2, 3, 1, 0).reshape(9, ins * outs)
    out = _empty(images, outs, height, width)
    _run(x, outs, _parts(x), {"weights": transformed, "out": out})
    return out


def _weight_gradient(x: Tensor, gradient: Tensor, weight: Tensor) -> Tensor:
    outs, ins = weight.shape[:2]
    parts = _parts(x)
    sums = _empty(parts, POSITIONS, ins * outs).zero_()
    _run(x, outs, parts, {"out_gradient": gradient, "weight_gradients": sums})
    found = _transform().T @ (sums[0] if parts == 1 else sums.sum(0))
    return found.view(3, 3, ins, outs).permute(3, 2, 0, 1)


def _run(x: Tensor, outs: int, parts: int, others: dict[str, Tensor]) -> None:
    native = core()
    assert native is not None
    images, ins, height, width = x.shape
    tensors = {"in": x, "scratch": _empty(parts, native.pof_winograd_scratch(int64(ins), int64(outs))), **others}
    assert all(tensor.dtype is torch.float32 for tensor in tensors.values())
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    sizes = {"images": images, "height": height, "width": width, "in_channels": ins, "out_channels": outs}
    native.pof_winograd(ctypes.byref(WinogradStruct(**pointers, **sizes, parts=parts)))


def _empty(*shape: int) -> Tensor:
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=torch.float32, device="cpu", memory_format=layout)


def _parts(x: Tensor) -> int:
    """Return how many parts to split the images into: one per thread."""
    return min(len(x), torch.get_num_threads())


@cache
def _transform() -> Tensor:
    """Both sides of G w G^T at once: 36 x 9."""
    g = np.array(_G)
    return torch.from_numpy(np.kron(g, g).astype(np.float32))
