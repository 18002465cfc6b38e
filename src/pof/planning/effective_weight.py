"""Whether a layer computes with the weight that it stores, so that zeros in the one are zeros in the other.

Weight-standardised convolutions do not: they subtract a mean and divide by a deviation first. The layer is called with
weights of which half are zero, and everything that it multiplies is looked at.
"""

import copy
from collections import OrderedDict
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode

TOLERANCE = 1e-3
"""How far the sum of parts may be from the whole, of the largest output."""
NOTHING = 1e-6
"""What counts as zero, of the largest number."""
PRODUCTS = ("conv", "mm", "addmm", "bmm", "baddbmm", "linear", "mv", "addmv", "mkldnn")
"""How the names of the operations begin, behind any underscores, that multiply an input by weights."""
MEDIAN = 0.6745
"""Half of all normal numbers are smaller."""
LARGE, SUMMED = 64, 0.7
"""A part of the weight of so many numbers has half of them; sums of two numbers or more are not zero more often."""
REPEATED = 65521
"""How many random numbers a large weight repeats: a prime, so that no two rows are alike."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")

SIZES = ("in_channels", "out_channels", "in_features", "out_features", "groups")
"""Numbers that do not change how a layer uses its weight."""
_KNOWN: WeakKeyDictionary[type, dict[object, bool | None]] = WeakKeyDictionary()
"""What was found for a class of layers, by what makes two of them alike."""


def computes_with_its_weight(module: nn.Module) -> bool | None:
    """Whether a convolution or linear layer multiplies its input by its `weight`, or by one with the same zeros.

    Layers of torch's own do, and other kinds that pof knows. Classes derived from them are tried, and layers that are
    alike in everything once. None means that a layer has a `forward` of its own and cannot be called alone, so nobody
    knows.
    """
    kind = type(module)
    if isinstance(module, nn.MultiheadAttention):
        return True if kind.forward.__module__.startswith("torch.") else None
    if not isinstance(module, (nn.Linear, _ConvNd)):
        return True
    # A function put in place of `forward` is bound to this very layer; accelerate's only moves what goes in and out.
    if "forward" in vars(module) and not hasattr(module, "_hf_hook"):
        return None
    if kind.__module__.startswith("torch.nn.modules."):
        return True
    key = _likeness(module)
    if key is None:
        return _keeps_zeros(module)
    known = _KNOWN.setdefault(kind, {})
    if key not in known:
        known[key] = _keeps_zeros(module)
    return known[key]


def _likeness(module: nn.Module) -> object:
    """What two layers of a class must share to be alike; None if that cannot be told: for parts, functions, objects."""
    found = []
    for name, value in vars(module).items():
        if name in nn.Module().__dict__ or name in SIZES:
            continue
        parts = value if isinstance(value, tuple) else (value,)
        if not all(part is None or isinstance(part, (bool, str, int, float)) for part in parts):
            return None
        found.append((name, value))
    return None if module._modules else tuple(found)


class _Factors(TorchDispatchMode):
    """Notes what products are made of: the tensors that operations multiply."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.lstrip("_").startswith(PRODUCTS):
            self.found += [arg.detach() for arg in args if isinstance(arg, Tensor)]
        return func(*args, **(kwargs or {}))


def _keeps_zeros(module: nn.Module) -> bool | None:
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point() or weight.is_meta or not weight.numel():
        return True
    # Numbers of its own, as the present ones may all be zero; a large weight repeats them, which is much quicker.
    draws = torch.Generator().manual_seed(0)
    numbers = torch.randn(min(weight.numel(), REPEATED), generator=draws)
    own = numbers.repeat(-(-weight.numel() // len(numbers)))[: weight.numel()].view(weight.shape).to(weight.device)
    try:
        x = torch.randn(_input_shape(module, weight.numel()), generator=draws).to(weight.device)
        with torch.random.fork_rng(devices=[]):
            return _Probe(module, draws, x).keeps_zeros(own)
    except Exception:  # a layer may want other inputs, or more of them
        return True if type(module).forward.__module__.startswith("torch.nn.modules.") else None


class _Probe:
    """Calls a layer with other weights, in float32 and without its hooks, and leaves no trace in it."""

    def __init__(self, module: nn.Module, draws: torch.Generator, x: Tensor) -> None:
        self._module = copy.copy(module)
        for hooks in HOOKS:
            setattr(self._module, hooks, OrderedDict())
        self._x = x
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        # Copies, as a layer may write to its buffers.
        self._state = {name: _in_float32(value) for name, value in tensors.items() if name != "weight"}
        # Scales and shifts often begin as ones and zeros, where they do nothing.
        moved = {
            name: self._state[name] + 0.5 * torch.randn(value.shape, generator=draws).to(value.device)
            for name, value in module.named_parameters()
            if name != "weight" and value.is_floating_point()
        }
        self._moved = {**self._state, **moved}

    def keeps_zeros(self, own: Tensor) -> bool:
        """Whether the outputs are linear in the weight, and the input meets no weight that is zero."""
        part = own.abs() > MEDIAN
        weights = own * part
        with torch.no_grad():
            whole = self._call(own)
            if not bool(whole.isfinite().all()):
                self._moved = self._state
                whole = self._call(own)
            others = self._call(own * ~part)
            with _Factors() as of_some:
                some = self._call(weights)
            with _Factors() as of_none:
                nothing = self._call(torch.zeros_like(own))
            with _Factors() as of_others:
                self._call(weights, self._x.flip(-1))
        off = float((some + others - nothing - whole).abs().max())
        if off > TOLERANCE * max(float(whole.abs().max()), 1e-6):
            return False
        if not len(of_some.found) == len(of_none.found) == len(of_others.found):
            return True
        moved = [
            factor
            for factor, without, other in zip(of_some.found, of_none.found, of_others.found, strict=True)
            # What depends on the input is no weight, unless a layer swaps the two.
            if not torch.equal(factor, without) and (factor.numel() == own.numel() or torch.equal(factor, other))
        ]
        factors = [factor for factor in moved if factor.numel() == own.numel()]
        kept = int(torch.count_nonzero(part))
        if any(_count(each) > SUMMED * each.numel() for each in moved if each.numel() >= LARGE):
            return False
        return all(_count(each) <= kept for each in factors) if factors else self._meets_one_weight(weights)

    @torch.enable_grad()
    def _meets_one_weight(self, weight: Tensor) -> bool:
        """Whether one number of the input meets one weight in each output: for layers with products of their own."""
        x = torch.zeros_like(self._x[:1])
        x.view(-1)[x[0, 0].numel() // 2] = 1.0
        free = weight.clone().requires_grad_()
        response = self._call(free, x) - self._call(free, torch.zeros_like(x))
        (met,) = torch.autograd.grad(response.reshape(-1)[response.abs().argmax()], free)
        return _count(met) <= 1

    def _call(self, weight: Tensor, x: Tensor | None = None) -> Tensor:
        found: Tensor = functional_call(self._module, {**self._moved, "weight": weight}, (self._x if x is None else x,))
        return found


def _in_float32(value: Tensor) -> Tensor:
    return value.detach().float().clone() if value.is_floating_point() else value.detach().clone()


def _count(values: Tensor) -> int:
    """How many of `values` are not zero."""
    return int((values.abs() > NOTHING * values.abs().max()).sum())


def _input_shape(module: nn.Module, weights: int) -> tuple[int, ...]:
    """The shape of a small batch that the layer takes, of another size than its weights."""
    if isinstance(module, nn.Linear):
        own: tuple[int, ...] = (module.in_features,)
    else:
        sizes = [2 * ((k - 1) * d + 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]  # type: ignore[arg-type]
        own = (int(module.in_channels), *sizes)  # type: ignore[arg-type]
    return (2 if 2 * torch.Size(own).numel() != weights else 3, *own)
