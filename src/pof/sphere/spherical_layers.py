"""Layers whose inputs have unit norm too, for training from scratch on the sphere (Liu et al., 2017).

    y = W x / ||x|| + b

"patch": ||x|| is the norm of the patch that each output position sees, `sqrt(conv(x^2, ones) + eps)`, per group.
"sample": one number per sample, about the root mean square of its patches' norms; cheaper. A linear layer is one patch.
The keys are those of torch's own layers. A normalisation layer should follow each of them, as the outputs are cosines.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pof.checks import check_choice
from pof.errors import PofError
from pof.planning.pruning_plan import plan
from pof.planning.wrappers import unwrap

Mode = Literal["patch", "sample"]
MODES = ("patch", "sample")
EPS = 1e-4


class SphericalConv2d(nn.Conv2d):
    """A convolution of unit-norm inputs; everything else is as in `torch.nn.Conv2d`."""

    mode: Mode = "patch"

    def forward(self, input: Tensor) -> Tensor:
        """Divide the convolution by the norm of its inputs, then add the bias."""
        output: Tensor = self._conv_forward(input, self.weight, None)
        by_group = output.unflatten(-3, (self.groups, -1))
        output = (by_group / self._norms(input).unsqueeze(-3)).flatten(-4, -3).to(output.dtype)
        return output if self.bias is None else output + self.bias.view(-1, 1, 1)

    def _norms(self, input: Tensor) -> Tensor:
        """Return what each group of outputs is divided by, at each position or for the whole sample."""
        check_choice(self.mode, "mode", MODES)
        squares = _squares(input).unflatten(-3, (self.groups, -1)).sum(-3)
        if self.mode == "sample":
            total = squares.mean(dim=(-3, -2, -1), keepdim=True) * self.weight.shape[2:].numel()
        else:
            ones = squares.new_ones((self.groups, 1, *self.weight.shape[2:]))
            with _without_autocast(input.device.type):
                total = self._conv_forward(squares, ones, None)
        norms: Tensor = (total + EPS).sqrt()
        return norms


class SphericalLinear(nn.Linear):
    """A linear layer of unit-norm inputs; everything else is as in `torch.nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """Divide the product by the norm of its inputs, then add the bias."""
        output = F.linear(input, self.weight)
        output = (output / (_squares(input).sum(dim=-1, keepdim=True) + EPS).sqrt()).to(output.dtype)
        return output if self.bias is None else output + self.bias


def normalize_inputs(
    model: nn.Module, mode: Mode = "patch", *, include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> list[str]:
    """Replace the plan's Conv2d and Linear layers, except the last Linear (the classifier), with spherical ones.

    The layers stay the same objects with the same parameters, keys and hooks, so optimisers and checkpoints keep
    working; the outputs of a trained network do change. Subclasses of Conv2d and Linear are left as they are.

    Args:
        model: any module.
        mode: "patch" or "sample"; see the top of this module.
        include: globs as in `pof.plan`; when given, the classifier is swapped too if it matches.
        exclude: globs as in `pof.plan`.

    Returns:
        the names of the layers that were swapped.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
        >>> normalize_inputs(model, "patch")
        ['2']
    """
    check_choice(mode, "mode", MODES)
    bare = unwrap(model)
    chosen = plan(model, include=include, exclude=exclude)
    linears = [module for module in bare.modules() if isinstance(module, nn.Linear)]
    classifier = linears[-1] if linears and not include else None
    layers = {
        name.rpartition(".")[0]: bare.get_submodule(name.rpartition(".")[0]) for entry in chosen for name in entry.names
    }
    swapped = []
    for name, layer in layers.items():
        # Only the class changes: a new object would lose hooks and other references to the layer.
        if layer is not classifier and type(layer) is nn.Conv2d:
            layer.__class__ = SphericalConv2d
            setattr(layer, "mode", mode)  # noqa: B010
            swapped.append(name)
        elif layer is not classifier and type(layer) is nn.Linear:
            layer.__class__ = SphericalLinear
            swapped.append(name)
    for module in bare.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            # Its fast path in evaluation reads the weights and would bypass the layers; this flag switches it off.
            module.activation_relu_or_gelu = 0
    if not swapped:
        raise PofError("no layer to swap: the plan has no plain Conv2d or Linear besides the classifier; use include")
    return swapped


def _squares(input: Tensor) -> Tensor:
    """Return the squares, in float32 where half precision would overflow."""
    return (input.float() if input.dtype in (torch.float16, torch.bfloat16) else input).square()


def _without_autocast(device: str) -> AbstractContextManager[object]:
    """Return a context without autocast, which would turn the squares back to half precision."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
