"""From a model to its program, by `torch.export`."""

import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from pof.errors import PofError
from pof.runtime.fusion import IN_PLACE, fused
from pof.runtime.program import Item, Operation, Program, Ref


def capture(model: nn.Module, example: tuple[Any, ...]) -> Program:
    """The program of `model`, whose batch may have any size if the model can be exported so.

    Raises:
        PofError: the model cannot be exported.
    """
    exported, fixed = _export(model, example)
    signature = exported.graph_signature
    constants = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    lifted = {key: value for key, value in exported.constants.items() if isinstance(value, Tensor)}
    lifted = {
        key: value for key, value in lifted.items() if key in set(signature.inputs_to_lifted_tensor_constants.values())
    }
    inputs = [node.name for node in exported.graph.nodes if node.op == "placeholder" and node.name not in constants]
    items: list[Item] = []
    outputs: Any = None
    for node in exported.graph.nodes:
        args, kwargs = (_with_refs(part) for part in (node.args, node.kwargs))
        if node.op == "call_function":
            items.append(Operation(node.name, node.target, tuple(args), dict(kwargs)))
        elif node.op == "output":
            outputs = pytree.tree_unflatten(list(args[0]), exported.call_spec.out_spec)
        elif node.op != "placeholder":
            raise PofError(f"the model has a {node.op} ({node.target}), which pof.compile cannot run")
    shapes = {n.name: tuple(n.meta["val"].shape) for n in exported.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    program = Program(tuple(inputs), constants, tuple(items), outputs, fixed, lifted, shapes)
    return fused(program)


def _with_refs(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf, tree)


def _export(model: nn.Module, example: tuple[Any, ...]) -> tuple[torch.export.ExportedProgram, bool]:
    """The exported model, and whether its sizes are fixed."""
    wide = tuple(_two(value) for value in example)
    shapes = tuple({0: torch.export.Dim.DYNAMIC} if isinstance(v, Tensor) and v.dim() else None for v in wide)
    error: Exception | None = None
    for inputs, dynamic in ((wide, shapes), (example, None)):
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = torch.export.export(model, inputs, dynamic_shapes=dynamic)
                if _must_be_functional(found.graph):
                    found = found.run_decompositions({})
                return found, dynamic is None
        except Exception as failed:  # export fails in many ways, each with its own error
            error = error or failed
    raise PofError(f"the model cannot be exported: {str(error).splitlines()[0]}") from error


def _two(value: Any) -> Any:
    """A batch of one as a batch of two: export would take a size of 1 for a constant."""
    return (
        value.repeat(2, *[1] * (value.dim() - 1))
        if isinstance(value, Tensor) and value.dim() and len(value) == 1
        else value
    )


def _must_be_functional(graph: fx.Graph) -> bool:
    """Whether an operation writes in place what another one may see."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        first = node.args[0] if node.args else None
        if (
            node.target not in IN_PLACE
            or not isinstance(first, fx.Node)
            or len(first.users) > 1
            or first.op == "placeholder"
        ):
            return True
    return False
