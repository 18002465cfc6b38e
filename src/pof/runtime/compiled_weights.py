"""The weights that a compiled model has taken up: a copy of the model's, and what kernels and torch make of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pof.errors import PofError
from pof.runtime.execution_steps import LayerWeights
from pof.runtime.program import Layer, Program
from pof.runtime.sparse_conv import ConvSpec

ModelTensors = dict[str, Tensor]


def copied_state(model: nn.Module) -> ModelTensors:
    """A copy of all parameters and buffers, under all their names."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach().clone() for name, tensor in named}


def refuse_other(before: ModelTensors, now: ModelTensors) -> None:
    """Raise if a model is no longer the one that was compiled."""
    for name, tensor in before.items():
        if name not in now:
            raise PofError(f"the model has no {name!r} any more: compile it again")
        if now[name].shape != tensor.shape or now[name].dtype is not tensor.dtype:
            there, here = tuple(tensor.shape), tuple(now[name].shape)
            raise PofError(f"{name!r} was {there} {tensor.dtype}, and is {here} {now[name].dtype}: compile it again")


@dataclass(frozen=True)
class CompiledWeights:
    """The constants of a program, and its layers' weights, in the forms that are used."""

    constants: dict[str, Tensor]
    specs: dict[str, ConvSpec]
    weights: LayerWeights
    weights_last: LayerWeights
    """In torch's other layout."""

    @classmethod
    def of(cls, program: Program, state: Mapping[str, Tensor]) -> "CompiledWeights":
        """Those of a program, from the state of its model."""
        constants = {n: program.lifted[k] if k in program.lifted else state[k] for n, k in program.constants.items()}
        layers = {item.name: item for item in program.items if isinstance(item, Layer)}
        specs = {name: layer.spec(constants) for name, layer in layers.items()}
        weights = {name: _for_torch(layers[name], spec) for name, spec in specs.items()}
        # What a model writes to is its own from here on.
        constants |= {name: constants[name].clone() for name in program.changes.buffers}
        return cls(constants, specs, weights, {name: _channels_last(*pair) for name, pair in weights.items()})


def _for_torch(layer: Layer, spec: ConvSpec) -> tuple[Tensor, Tensor]:
    """Weight and bias of a layer as torch wants them."""
    weight = torch.from_numpy(spec.weight)
    return weight[:, :, 0, 0] if layer.kind == "linear" else weight, torch.from_numpy(spec.bias)


def _channels_last(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same in torch's other layout."""
    return weight.contiguous(memory_format=torch.channels_last) if weight.dim() == 4 else weight, bias
