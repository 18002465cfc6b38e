"""Recognise the operations that are layers: convolutions and products with constant weights."""

from typing import Any

from pof.planning.layer_kinds import SPARSE_OPERATIONS
from pof.runtime.program import Layer, Operation, Program, Ref
from pof.runtime.sparse_conv import Depth


def layer_of(operation: Operation, program: Program) -> Layer | None:
    """The operation as a layer, if it is a convolution or a linear layer with constant weights."""
    kind = SPARSE_OPERATIONS.get(str(operation.target))
    if kind is None or operation.kwargs:
        return None
    if kind == "product":
        return _product(operation, program)
    source, weight, *more = operation.args
    bias = more[0] if more else None
    if not _are_constant(source, weight, bias, 0, program):
        return None
    names = (operation.name, kind, source.name, weight.name, None if bias is None else bias.name)
    return Layer(*names) if kind == "linear" else _convolution(names, more[1:], program)


def _product(operation: Operation, program: Program) -> Layer | None:
    """A product with a constant matrix of (in, out), perhaps with a bias before it, as in GPT-2."""
    *before, source, weight = operation.args
    bias = before[0] if before else None
    if not _are_constant(source, weight, bias, 1, program) or len(program.shapes[weight.name]) != 2:
        return None
    bias_name = None if bias is None else bias.name
    return Layer(operation.name, "linear", source.name, weight.name, bias_name, transposed=True)


def _are_constant(source: Any, weight: Any, bias: Any, rows: int, program: Program) -> bool:
    """Whether weight and bias are constants, the source is none, and the bias has one number per row of the weight."""
    refs = [value for value in (source, weight, bias) if value is not None]
    if not all(isinstance(value, Ref) and value.name in program.floats for value in refs):
        return False
    known = program.fixed
    if source.name in known or not all(value.name in known for value in refs[1:]):
        return False
    shape = program.shapes[weight.name]
    # A shorter bias would be broadcast by torch, but the kernels would read past its end.
    return len(shape) > 1 and (bias is None or program.shapes[bias.name] == (shape[rows],))


def _convolution(names: tuple[str, str, str, str, str | None], settings: list[Any], program: Program) -> Layer | None:
    shape = program.shapes[names[3]]
    dims = len(shape) - 2
    defaults: tuple[Any, ...] = ([1] * dims, [0] * dims, [1] * dims, 1)
    stride, padding, dilation, groups = (*settings, *defaults[len(settings) :])
    stride, dilation = _each(stride, dims), _each(dilation, dims)
    padding = _padding(padding, shape, dilation) if isinstance(padding, str) else _each(padding, dims)
    if padding is None or not 1 <= dims <= 3:
        return None
    depth = Depth(shape[2], stride[0], padding[0], dilation[0]) if dims == 3 else None
    places = (_pair(stride, 1), _pair(padding, 0), _pair(dilation, 1))
    return Layer(*names, *places, groups, dims=dims, depth=depth)


def _padding(name: str, shape: tuple[int, ...], dilation: list[int]) -> list[int] | None:
    """The pixels of padding on either side; None if the sides differ."""
    reach = [(size - 1) * step for size, step in zip(shape[2:], dilation, strict=True)]
    if name == "valid":
        return [0] * len(reach)
    return None if any(pixels % 2 for pixels in reach) else [pixels // 2 for pixels in reach]


def _each(values: Any, dims: int) -> list[int]:
    """A setting for each dimension; torch may give one for all."""
    found = [int(value) for value in values] if isinstance(values, (list, tuple)) else [int(values)]
    return found * dims if len(found) == 1 else found


def _pair(values: list[int], least: int) -> tuple[int, int]:
    """The last two of a setting; a line is an image of height one."""
    return (least, values[0]) if len(values) == 1 else (values[-2], values[-1])
