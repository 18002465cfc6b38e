"""What pof hangs on an optimiser: the traps of other people's training loops are handled here, once."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pof.errors import PofError


def innermost(optimizer: Optimizer) -> Optimizer:
    """The optimiser that really steps: accelerate and Lightning wrap it, and hooks on the wrapper never run."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise PofError(f"optimizer={optimizer!r} must be a torch.optim.Optimizer")
    return optimizer


def trained_by(optimizer: Optimizer, weights: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Those of `weights` that `optimizer` changes; none at all is an error."""
    held = {id(p) for group in innermost(optimizer).param_groups for p in group["params"]}
    trained = {name: weight for name, weight in weights.items() if id(weight) in held and weight.requires_grad}
    if not trained:
        raise PofError("the optimizer trains no weight of the plan: pass the optimizer that was made for this model")
    return trained


def after_step(optimizer: Optimizer, action: Callable[[], None]) -> RemovableHandle:
    """Run `action` after every step of `optimizer`."""
    return innermost(optimizer).register_step_post_hook(lambda *_: action())


def before_step(optimizer: Optimizer, add_gradient: Callable[[Tensor | float], Tensor]) -> RemovableHandle:
    """Have `add_gradient(scale)` add to the gradients when they are complete, just before they are used.

    It returns the value of the term that it added. A closure given to `step` computes the gradients itself (Lightning,
    LBFGS), so it is wrapped and the term joins its loss; fused optimisers under a GradScaler see scaled gradients, so
    the scale is handed on.
    """

    def hook(inner: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            scale = getattr(inner, "grad_scale", None)
            add_gradient(1.0 if scale is None else scale)
            return None

        @torch.enable_grad()
        def with_term() -> Any:
            loss = closure()
            # A closure that returns None (Lightning: the batch was skipped) computed no gradients.
            return None if loss is None else loss + add_gradient(1.0).to(getattr(loss, "device", "cpu"))

        if "closure" in kwargs:
            return args, {**kwargs, "closure": with_term}
        return (args[0], with_term, *args[2:]), kwargs

    return innermost(optimizer).register_step_pre_hook(hook)


def step_was_skipped(optimizer: Optimizer) -> bool:
    """Whether the GradScaler told a fused optimiser to leave the weights as they are."""
    found = getattr(innermost(optimizer), "found_inf", None)
    return found is not None and bool(found)
