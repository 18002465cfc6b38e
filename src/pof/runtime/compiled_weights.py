"""The weights of a compiled model: a copy of the model's own, in the forms that the kernels and torch need."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pof.errors import PofError
from pof.runtime.execution_steps import LayerWeights, bound_call
from pof.runtime.program import Layer, Program
from pof.runtime.sparse_conv import ConvSpec

ModelTensors = dict[str, Tensor]


def tensors_of_model(model: nn.Module) -> ModelTensors:
    """All parameters and buffers, under all their names."""
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor.detach() for name, tensor in named}


def refuse_other(before: ModelTensors, now: ModelTensors) -> None:
    """Raise an error if the model is no longer the one that was compiled."""
    for name, tensor in before.items():
        if name not in now:
            raise PofError(f"the model no longer has {name!r}: compile it again")
        if now[name].shape != tensor.shape or now[name].dtype is not tensor.dtype:
            there, here = tuple(tensor.shape), tuple(now[name].shape)
            raise PofError(
                f"the model's {name!r} was {there} {tensor.dtype}, now {here} {now[name].dtype}: compile it again"
            )


@dataclass(frozen=True)
class CompiledWeights:
    """A program's constants and its layers' weights, in each form in which they are used."""

    constants: dict[str, Tensor]
    specs: dict[str, ConvSpec]
    weights: LayerWeights
    weights_last: LayerWeights
    """The same weights in torch's channels-last layout."""

    @classmethod
    def of(cls, program: Program, state: Mapping[str, Tensor]) -> "CompiledWeights":
        """Make the weights of a program from the state of its model."""
        constants = {n: program.lifted[k] if k in program.lifted else state[k] for n, k in program.constants.items()}
        for operation in program.derived:
            constants[operation.name] = bound_call(operation)(constants)
        layers = {item.name: item for item in program.items if isinstance(item, Layer)}
        specs = {name: layer.spec(constants) for name, layer in layers.items()}
        weights = {name: _for_torch(layers[name], spec) for name, spec in specs.items()}
        return cls(constants, specs, weights, {name: _channels_last(*pair) for name, pair in weights.items()})


def _for_torch(layer: Layer, spec: ConvSpec) -> tuple[Tensor, Tensor]:
    """A layer's weight and bias as torch expects them."""
    weight, bias = torch.from_numpy(spec.weight), torch.from_numpy(spec.bias)
    if layer.kind == "linear":
        return weight[:, :, 0, 0], bias
    if layer.depth is not None:
        return weight.unflatten(1, (-1, layer.depth.size)), bias
    return weight[:, :, 0] if layer.dims == 1 else weight, bias


def _channels_last(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The same pair in torch's channels-last layout."""
    return weight.contiguous(memory_format=torch.channels_last) if weight.dim() == 4 else weight, bias
