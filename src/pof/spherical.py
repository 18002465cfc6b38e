"""Layers whose inputs have unit norm too, for training from scratch on the sphere (Liu et al., 2017).

    y = W x / ||x|| + b

"patch": ||x|| is the norm of the patch that each output position sees, `sqrt(conv(x^2, ones) + eps)`, by group.
"sample": one number a sample, about the root mean square of its patches' norms; cheaper. A linear layer has one patch.
The keys are those of torch's own layers. A normalisation layer should follow each of them, as the outputs are cosines.
"""

from collections.abc import Iterable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from pof.errors import PofError
from pof.planning import plan, unwrap
from pof.states import check_choice

Mode = Literal["patch", "sample"]
EPS = 1e-4


class SphericalConv2d(nn.Conv2d):
    """A convolution of inputs of unit norm; everything else is `torch.nn.Conv2d`."""

    mode: Mode = "patch"

    def forward(self, input: Tensor) -> Tensor:
        """The convolution divided by the norm of its inputs, then the bias."""
        output: Tensor = self._conv_forward(input, self.weight, None)
        if self.mode == "patch":
            output = self._divided_by_patches(input, output)
        else:
            fan_in = self.weight[0].numel()
            squares = input.square().mean(dim=(-3, -2, -1), keepdim=True) * fan_in
            output = output / (squares + EPS).sqrt()
        return output if self.bias is None else output + self.bias.view(-1, 1, 1)

    def _divided_by_patches(self, input: Tensor, output: Tensor) -> Tensor:
        ones = self.weight.new_ones((self.groups, *self.weight.shape[1:]))
        norms = (self._conv_forward(input.square(), ones, None) + EPS).sqrt()
        by_group: Tensor = output.unflatten(-3, (self.groups, -1)) / norms.unsqueeze(-3)
        return by_group.flatten(-4, -3)


class SphericalLinear(nn.Linear):
    """A linear layer of inputs of unit norm; everything else is `torch.nn.Linear`."""

    def forward(self, input: Tensor) -> Tensor:
        """The product divided by the norm of its inputs, then the bias."""
        norms = (input.square().sum(dim=-1, keepdim=True) + EPS).sqrt()
        output = F.linear(input, self.weight) / norms
        return output if self.bias is None else output + self.bias


def normalize_inputs(
    model: nn.Module, mode: Mode = "patch", *, include: Iterable[str] = (), exclude: Iterable[str] = ()
) -> list[str]:
    """Swap spherical layers in for the Conv2d and Linear layers of the plan, but the last Linear (the classifier).

    The parameters stay the same objects under the same keys, so optimisers and checkpoints go on working; what a
    trained network computes does change. Layers of other classes, subclasses too, stay as they are.

    Returns:
        the names of the layers that were swapped.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
        >>> normalize_inputs(model, "patch")
        ['2']
    """
    check_choice(mode, "mode", ("patch", "sample"))
    bare = unwrap(model)
    chosen = plan(model, include=include, exclude=exclude)
    names = [entry.name.rpartition(".")[0] for entry in chosen]
    linears = [name for name, module in bare.named_modules() if isinstance(module, nn.Linear)]
    classifier = linears[-1] if linears and not include else None
    swaps = {
        bare.get_submodule(name): name
        for name in names
        if name != classifier and type(bare.get_submodule(name)) in (nn.Conv2d, nn.Linear)
    }
    if not swaps:
        raise PofError("no layer to swap: the plan has no plain Conv2d, or Linear beside the classifier; use include")
    if bare in swaps:
        raise PofError(
            f"the model is itself a {type(bare).__name__}: put it into a Sequential so that it can be swapped"
        )
    made = {layer: _spherical(layer, mode) for layer in swaps}
    for parent in list(bare.modules()):
        for name, child in list(parent._modules.items()):
            if child in made:
                setattr(parent, name, made[child])
    return list(swaps.values())


def _spherical(layer: nn.Module, mode: Mode) -> SphericalConv2d | SphericalLinear:
    """A spherical layer that shares the parameters (and the mode) of `layer`."""
    new: SphericalConv2d | SphericalLinear
    if isinstance(layer, nn.Conv2d):
        new = nn.utils.skip_init(
            SphericalConv2d,
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            dilation=layer.dilation,
            groups=layer.groups,
            bias=layer.bias is not None,
            padding_mode=layer.padding_mode,
        )
        new.mode = mode
    else:
        assert isinstance(layer, nn.Linear)
        new = nn.utils.skip_init(SphericalLinear, layer.in_features, layer.out_features, bias=layer.bias is not None)
    new.weight, new.bias = layer.weight, layer.bias
    return new.train(layer.training)


__all__ = ["SphericalConv2d", "SphericalLinear", "normalize_inputs"]
