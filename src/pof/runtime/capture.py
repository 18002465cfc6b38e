"""Turn a model into its program with `torch.export`."""

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import ConstantArgument, OutputKind
from torch.utils import _pytree as pytree

from pof.errors import PofError
from pof.runtime.call_inputs import CallInputs
from pof.runtime.constant_folding import folded
from pof.runtime.fusion import DROPOUT, IN_PLACE, fused
from pof.runtime.program import Changes, Fixed, Item, Operation, Program, Range, Ref, Size
from pof.runtime.torch_export import exported_graph, functional

aten = torch.ops.aten
SAME_WITHOUT_STRIDES = {aten.view.default: aten.reshape.default, aten.view_copy.default: aten.reshape.default}
"""Operations that need a certain memory order, each with one that gives the same result in any order."""
NEEDS_STRIDES = (aten.as_strided.default, aten.as_strided_copy.default, aten.view.dtype)


def capture(model: nn.Module, inputs: CallInputs) -> Program:
    """The program of `model` for inputs like these, and for other batch sizes where export allows them.

    Raises:
        PofError: the model cannot be exported.
    """
    exported = exported_graph(model, *inputs)
    if _must_be_functional(exported.graph):
        exported = functional(exported)
    return fused(folded(_program(exported, inputs)))


def _program(exported: torch.export.ExportedProgram, example: CallInputs) -> Program:
    signature = exported.graph_signature
    constants = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    keys = set(signature.inputs_to_lifted_tensor_constants.values())
    lifted = {k: v for k, v in exported.constants.items() if isinstance(v, Tensor) and k in keys}
    inputs = [node for node in exported.graph.nodes if node.op == "placeholder" and node.name not in constants]
    items: list[Item] = []
    for node in exported.graph.nodes:
        if node.op == "call_function":
            args, kwargs = (_with_refs(part) for part in (node.args, node.kwargs))
            target = SAME_WITHOUT_STRIDES.get(node.target, node.target)
            items.append(Operation(node.name, target, tuple(args), dict(kwargs)))
        elif node.op not in ("placeholder", "output"):
            raise PofError(f"the model has a {node.op} ({node.target}), which pof.compile cannot run")
    outputs, changes = _outputs(exported)
    tensors = {n.name: n.meta["val"] for n in exported.graph.nodes if isinstance(n.meta.get("val"), Tensor)}
    return Program(
        inputs=tuple(node.name for node in inputs),
        sizes=tuple(_size(exported, node, value) for node, value in zip(inputs, example.leaves(), strict=True)),
        tree=example.tree(),
        constants=constants,
        items=tuple(items),
        outputs=outputs,
        changes=changes,
        needs_strides=any(item.target in NEEDS_STRIDES for item in items if isinstance(item, Operation)),
        lifted=lifted,
        shapes={name: tuple(value.shape) for name, value in tensors.items()},
        floats=frozenset(name for name, value in tensors.items() if value.dtype is torch.float32),
    )


def _outputs(exported: torch.export.ExportedProgram) -> tuple[Any, Changes]:
    """What the model returns, and which inputs and buffers it changes."""
    found: list[Any] = []
    inputs, buffers = dict[str, str](), dict[str, str]()
    names = {target: name for name, target in exported.graph_signature.inputs_to_buffers.items()}
    for spec in exported.graph_signature.output_specs:
        if spec.kind is OutputKind.USER_OUTPUT:
            found.append(spec.arg.value if isinstance(spec.arg, ConstantArgument) else Ref(spec.arg.name))
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            inputs[str(spec.target)] = spec.arg.name
        elif spec.kind is OutputKind.BUFFER_MUTATION:
            buffers[names[str(spec.target)]] = spec.arg.name
        else:
            raise PofError(f"the model has an output of kind {spec.kind.name}, which pof.compile cannot return")
    return pytree.tree_unflatten(found, exported.call_spec.out_spec), Changes(inputs, buffers)


def _size(exported: torch.export.ExportedProgram, node: fx.Node, value: Any) -> Size | Fixed:
    """Which values of an input the program takes."""
    if not isinstance(value, Tensor):
        return Fixed(value)
    sides: list[int | Range] = []
    for side in node.meta["val"].shape:
        if isinstance(side, int):
            sides.append(side)
            continue
        allowed = exported.range_constraints.get(side.node.expr)
        if allowed is None:
            # The size is computed from another one: only the value in the example is known to work.
            sides.append(value.shape[len(sides)])
            continue
        # Export treats sizes of 0 and 1 as constants, so a range never covers them.
        sides.append(Range(str(side.node.expr), max(2, _bound(allowed.lower, 2)), _bound(allowed.upper, 1 << 62)))
    return Size(tuple(sides), value.dtype)


def _bound(number: Any, infinite: int) -> int:
    return int(number) if getattr(number, "is_Integer", False) or isinstance(number, int) else infinite


def _with_refs(tree: Any) -> Any:
    return pytree.tree_map(lambda leaf: Ref(leaf.name) if isinstance(leaf, fx.Node) else leaf, tree)


def _must_be_functional(graph: fx.Graph) -> bool:
    """Whether an operation writes in place to memory that another one may see."""
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
            or _may_be_a_view(first)
        ):
            return True
    return False


def _may_be_a_view(node: fx.Node) -> bool:
    """Whether a value may share its memory with another one."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.target in DROPOUT or node.target is operator.getitem:
        return True
    # An operation in place returns the tensor that it wrote to, which has been checked already.
    return node.target not in IN_PLACE and any(result.alias_info is not None for result in schema.returns)
