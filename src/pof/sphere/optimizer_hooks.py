"""The hooks that pof puts on an optimiser: the traps of other people's training loops are handled here, once."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pof.errors import PofError


def innermost(optimizer: Optimizer) -> Optimizer:
    """Return the optimiser that really steps: accelerate and Lightning wrap it, and hooks on the wrapper never run."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    if not isinstance(optimizer, Optimizer):
        raise PofError(f"optimizer is a {type(optimizer).__name__}: pass a torch.optim.Optimizer")
    return optimizer


def trained_by(optimizer: Optimizer, weights: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return the `weights` that `optimizer` changes at its next step: those that it holds and that are not frozen."""
    held = {id(p) for group in innermost(optimizer).param_groups for p in group["params"]}
    return {name: weight for name, weight in weights.items() if id(weight) in held and weight.requires_grad}


def refuse_maximizer(optimizer: Optimizer) -> None:
    """Raise if `optimizer` maximises: it would maximise the penalty too."""
    if any(group.get("maximize") for group in innermost(optimizer).param_groups):
        raise PofError("the optimizer has maximize=True and would raise the penalty: negate your loss instead")


def refuse_stranger(optimizer: Optimizer, weights: dict[str, nn.Parameter]) -> None:
    """Raise if `optimizer` holds none of `weights`, frozen or not."""
    held = {id(p) for group in innermost(optimizer).param_groups for p in group["params"]}
    if not any(id(weight) in held for weight in weights.values()):
        raise PofError("the optimizer trains no weight of the plan: pass the optimizer that was made for this model")


def after_step(optimizer: Optimizer, action: Callable[[], None], *, first: bool = False) -> RemovableHandle:
    """Run `action` after every step of `optimizer` that was not skipped; `first` puts it before all other hooks."""
    inner = innermost(optimizer)

    def hook(*_: object) -> None:
        if not _was_skipped(inner) and not _is_inner_step(inner):
            action()

    hooks = inner._optimizer_step_post_hooks
    others = list(hooks.items()) if first else []
    handle = inner.register_step_post_hook(hook)
    for key, other in others:
        # Removed and put back, the other hooks run after ours.
        del hooks[key]
        hooks[key] = other
    return handle


def before_step(optimizer: Optimizer, add_gradient: Callable[[Tensor | float], Tensor]) -> RemovableHandle:
    """Have `add_gradient(scale)` add to the gradients when they are complete, just before they are used.

    It returns the value of the term whose gradient it added. A closure given to `step` computes the gradients itself
    (Lightning, LBFGS), so it is wrapped and the term is added to its loss. Fused optimisers under a GradScaler see
    scaled gradients, so the scale is passed on.
    """

    def hook(inner: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        if _is_inner_step(inner):
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            scale = getattr(inner, "grad_scale", None)
            add_gradient(1.0 if scale is None else scale)
            return None

        @torch.enable_grad()
        def with_term() -> Any:
            loss = closure()
            if loss is None and not _has_gradients(inner):
                # Lightning skipped the batch.
                return None
            term = add_gradient(1.0)
            return None if loss is None else loss + term.to(getattr(loss, "device", "cpu"))

        if "closure" in kwargs:
            return args, {**kwargs, "closure": with_term}
        return (args[0], with_term, *args[2:]), kwargs

    return innermost(optimizer).register_step_pre_hook(hook)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _was_skipped(optimizer: Optimizer) -> bool:
    """Whether a GradScaler told a fused optimiser to skip this step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _is_inner_step(optimizer: Optimizer) -> bool:
    """Whether the step that runs our hook was called by another step of the same optimiser.

    torch hooks the `step` of both a class and its subclass: one that calls `super().step()` would run hooks twice.
    """
    frame: FrameType | None = sys._getframe(1)
    steps = 0
    while frame is not None and steps < 2:
        if frame.f_code.co_name == "wrapper" and frame.f_globals.get("__name__") == "torch.optim.optimizer":
            steps += frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return steps == 2
