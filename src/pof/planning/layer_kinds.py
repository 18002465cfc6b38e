"""The kinds of layers that can be pruned, in one table. To add a kind, add an entry to `LAYER_KINDS`.

Everything that differs between kinds is a column: which parameters are weights, where the rows of a weight lie (a
`.pof` file stores that as `groups`), whether the layer counts as a convolution, and which of its operations the runtime
can make sparse.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer that can be pruned."""

    name: str
    matches: Callable[[nn.Module], bool]
    """Whether a module is of this kind; subclasses count too."""
    weights: tuple[str, ...] = ("weight",)
    """The names of the parameters that are weights; those that are None in a module do not count."""
    groups: Callable[[Any], int] | None = None
    """Returns a layer's groups, for a kind whose output units lie in dimension 1; None if they lie in dimension 0."""
    convolves: bool = False
    """Whether a layer of this kind can be the first convolution of a model."""
    operations: Mapping[str, str] = field(default_factory=dict)
    """The torch operations that compute this kind, and how the runtime computes each: as "conv" or as "linear"."""

    def weight_names(self, module: nn.Module) -> tuple[str, ...]:
        """The names of the weights that `module` has."""
        return tuple(name for name in self.weights if name == "weight" or getattr(module, name, None) is not None)


def _is_transposed_linear(module: nn.Module) -> bool:
    """Whether `module` is the Conv1D of transformers (GPT-2 and others): a linear layer whose weight is (in, out)."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils" for kind in type(module).__mro__
    )


LAYER_KINDS = (
    LayerKind(
        "convolution",
        lambda module: isinstance(module, CONVOLUTIONS),
        convolves=True,
        operations={"aten.conv2d.default": "conv", "aten.conv2d.padding": "conv"},
    ),
    LayerKind(
        "transposed convolution",
        lambda module: isinstance(module, TRANSPOSED),
        groups=lambda module: module.groups,
        convolves=True,
    ),
    LayerKind("linear", lambda module: isinstance(module, nn.Linear), operations={"aten.linear.default": "linear"}),
    LayerKind("transposed linear", _is_transposed_linear, groups=lambda module: 1),
    LayerKind("attention", lambda module: isinstance(module, nn.MultiheadAttention), weights=ATTENTION_WEIGHTS),
)

SPARSE_OPERATIONS = {name: how for kind in LAYER_KINDS for name, how in kind.operations.items()}
"""How the runtime computes each torch operation sparsely, by the operation's name."""


def kind_of(module: nn.Module) -> LayerKind | None:
    """The kind of `module`; None if it is not a layer that can be pruned."""
    return next((kind for kind in LAYER_KINDS if kind.matches(module)), None)
