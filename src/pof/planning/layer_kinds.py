"""The kinds of layers that can be pruned, in one table. To add a kind, add an entry to `LAYER_KINDS`.

Everything that differs between kinds is a column: which parameters are weights, where the rows of a weight lie (a
`.pof` file stores that too), whether the layer counts as a convolution, and which of its operations the runtime
can make sparse.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pof.ranking.row_layout import PLAIN, RowLayout

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
    weights_of: Callable[[Any], tuple[str, ...]] | None = None
    """Returns those names, for a kind whose modules have different ones."""
    layout: Callable[[Any, Tensor], RowLayout] | None = None
    """Returns where the rows of a module's weight lie; None for a kind where they lie in dimension 0."""
    convolves: bool = False
    """Whether a layer of this kind can be the first convolution of a model."""
    operations: Mapping[str, str] = field(default_factory=dict)
    """The torch operations that compute this kind, and how the runtime computes each: as "conv", as "linear", or as a
    "product" with a weight of (in, out)."""

    def weight_names(self, module: nn.Module) -> tuple[str, ...]:
        """The names of the weights that `module` has."""
        if self.weights_of is not None:
            return self.weights_of(module)
        return tuple(name for name in self.weights if name == "weight" or getattr(module, name, None) is not None)


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether `module` is the Conv1D of transformers (GPT-2 and others): a linear layer whose weight is (in, out)."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils" for kind in type(module).__mro__
    )


def _expert_weights(module: nn.Module) -> tuple[str, ...]:
    """The parameters that hold one matrix per expert."""
    return tuple(
        name
        for name, value in module._parameters.items()
        if value is not None and value.dim() == 3 and is_real(value) and "embed" not in name
    )


def is_real(parameter: nn.Parameter) -> bool:
    """Whether a parameter holds floating-point numbers."""
    return isinstance(parameter, UninitializedParameter) or parameter.is_floating_point()


def _is_experts(module: nn.Module) -> bool:
    """Whether `module` holds the experts of a mixture as three-dimensional parameters, as those of transformers do."""
    return type(module).__name__.endswith("Experts") and bool(_expert_weights(module))


def _expert_rows(module: Any, weight: Tensor) -> RowLayout:
    """A row is an output unit of one expert: weights are (experts, out, in) or, transposed, (experts, in, out)."""
    return RowLayout(last=True) if _is_transposed(module) else RowLayout(matrix=weight.shape[0] * weight.shape[1])


def _is_transposed(module: Any) -> bool:
    """Whether experts are (experts, in, out). `is_transposed` of transformers says so; Llama 4 has only its shapes."""
    up, down = getattr(module, "gate_up_proj", None), getattr(module, "down_proj", None)
    if hasattr(module, "is_transposed") or up is None or down is None:
        return bool(getattr(module, "is_transposed", False))
    # Gate and up are side by side, so that this side is twice as long as the one of `down` that it meets.
    return tuple(up.shape[1:]) == (down.shape[2], 2 * down.shape[1])


def _is_stacked_experts(module: nn.Module) -> bool:
    """Whether `module` holds the experts of DBRX: matrices of (experts * inner, hidden)."""
    return type(module).__name__ == "DbrxExpertGLU" and hasattr(module, "moe_num_experts")


def _stacked_rows(module: Any, weight: Tensor) -> RowLayout:
    """The inner units are the rows of `w1` and `v1`; `w2` is used transposed, so its columns are units, per expert."""
    return RowLayout(groups=module.moe_num_experts) if weight is module.w2 else PLAIN


def _is_conditional(module: nn.Module) -> bool:
    """Whether `module` is timm's CondConv2d, which mixes the kernels of several experts for each sample."""
    return type(module).__name__ == "CondConv2d" and hasattr(module, "weight_shape") and hasattr(module, "num_experts")


LAYER_KINDS = (
    LayerKind(
        "convolution",
        lambda module: isinstance(module, CONVOLUTIONS),
        convolves=True,
        operations={f"aten.conv{dims}d.{form}": "conv" for dims in (1, 2, 3) for form in ("default", "padding")},
    ),
    LayerKind(
        "transposed convolution",
        lambda module: isinstance(module, TRANSPOSED),
        layout=lambda module, weight: RowLayout(groups=module.groups),
        convolves=True,
    ),
    LayerKind("linear", lambda module: isinstance(module, nn.Linear), operations={"aten.linear.default": "linear"}),
    LayerKind(
        "transposed linear",
        is_transposed_linear,
        layout=lambda module, weight: RowLayout(groups=1),
        operations={"aten.addmm.default": "product", "aten.mm.default": "product", "aten.matmul.default": "product"},
    ),
    LayerKind("attention", lambda module: isinstance(module, nn.MultiheadAttention), weights=ATTENTION_WEIGHTS),
    LayerKind("experts", _is_experts, weights_of=_expert_weights, layout=_expert_rows),
    LayerKind("stacked experts", _is_stacked_experts, weights=("w1", "v1", "w2"), layout=_stacked_rows),
    LayerKind(
        "conditional convolution",
        _is_conditional,
        layout=lambda module, weight: RowLayout(matrix=module.num_experts * module.weight_shape[0]),
    ),
)

SPARSE_OPERATIONS = {name: how for kind in LAYER_KINDS for name, how in kind.operations.items()}
"""How the runtime computes each torch operation sparsely, by the operation's name."""


def kind_of(module: nn.Module) -> LayerKind | None:
    """The kind of `module`; None if it is not a layer that can be pruned."""
    return next((kind for kind in LAYER_KINDS if kind.matches(module)), None)
