"""Fine-tuning a pruned model: its zeros stay zero, in spite of momentum and weight decay."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from pof.sphere.optimizer_hooks import after_step, innermost, refuse_stranger


def hold_zeros(optimizer: Optimizer, weights: dict[str, nn.Parameter]) -> RemovableHandle:
    """Hold the present zeros of `weights` at zero through every step of `optimizer`; `remove()` on the result ends it.

    Masking gradients is not enough: momentum and weight decay move weights whose gradient is zero. So both the weights
    and the optimiser's state for them are set back to zero after each step.
    """
    refuse_stranger(optimizer, weights)
    zeros = [(weight, weight.detach() == 0) for weight in weights.values()]

    def clear() -> None:
        for weight, zero in zeros:
            zero_where(optimizer, weight, zero.to(weight.device))

    clear()
    # Before the sphere's projection, which would otherwise see the values that the step wrote over the zeros.
    return after_step(optimizer, clear, first=True)


@torch.no_grad()
def zero_where(optimizer: Optimizer, weight: nn.Parameter, where: Tensor) -> None:
    """Zero `weight`, and the state that `optimizer` has for its elements, where `where` is True."""
    weight.masked_fill_(where, 0.0)
    for value in innermost(optimizer).state.get(weight, {}).values():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            value.masked_fill_(where, 0.0)
