"""Whether a layer computes with the weight that it stores, so that zeros in the one are zeros in the other.

Weight-standardised convolutions do not: they subtract a mean and divide by a deviation first. What they compute is not
linear in the stored weight, and that can be seen by calling the layer with parts of it.
"""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

TOLERANCE = 1e-3
"""How far the sum of parts may be from the whole, of the largest output."""

_KNOWN: WeakKeyDictionary[type, bool] = WeakKeyDictionary()
"""What was found for a class of layers."""


def computes_with_its_weight(module: nn.Module) -> bool:
    """Whether the outputs of a convolution or linear layer are linear in its `weight`.

    Only classes that override torch's own forward are tried, each once; a layer that cannot be called alone passes.
    """
    kind = type(module)
    if kind.__module__.startswith("torch.nn.modules."):
        return True
    if kind not in _KNOWN:
        _KNOWN[kind] = _is_linear(module)
    return _KNOWN[kind]


@torch.no_grad()
def _is_linear(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.is_meta or not weight.numel():
        return True
    # Copies, as a layer may write to its buffers; numbers of its own, as the present ones may all be zero.
    draws = torch.Generator().manual_seed(0)
    own = torch.randn(weight.shape, generator=draws).to(weight)
    part = torch.rand(weight.shape, generator=draws).to(weight.device) < 0.5
    rest = {name: value.detach().clone() for name, value in (*module.named_parameters(), *module.named_buffers())}
    try:
        x = torch.randn(_input_shape(module), generator=draws).to(weight)
        with torch.random.fork_rng(devices=[]):
            whole, some, others, nothing = (
                functional_call(module, {**rest, "weight": values}, (x,)).float()
                for values in (own, own * part, own * ~part, torch.zeros_like(own))
            )
    except Exception:  # a layer may want other inputs, or more of them
        return True
    off = float((some + others - nothing - whole).abs().max())
    return off <= TOLERANCE * max(float(whole.abs().max()), 1e-6)


def _input_shape(module: nn.Module) -> tuple[int, ...]:
    """The shape of a small batch that the layer takes."""
    if isinstance(module, nn.Linear):
        return (2, module.in_features)
    sizes = [2 * ((k - 1) * d + 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]  # type: ignore[arg-type]
    return (2, int(module.in_channels), *sizes)  # type: ignore[arg-type]
