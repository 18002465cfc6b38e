"""A network that others learn from: a copy that is not trained."""

from copy import deepcopy

from torch import nn

from pof.planning import unwrap


def frozen_copy(model: nn.Module) -> nn.Module:
    """`model` as it is now, in evaluation mode and without gradients."""
    return deepcopy(unwrap(model)).eval().requires_grad_(False)
