"""Weights that a module takes from one of its parts and computes with itself, perhaps after changing them.

`F.conv2d(x, standardised(self.conv.weight))` convolves with numbers where the stored weight has zeros, and the part's
own class does not show it. The code of `forward` is searched for such reads, and where there is one, the module is
traced: each value either has its zeros where the weight has them, or not.
"""

import dis
import inspect
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.nn import functional as F

from pof.planning.shared_memory import identity
from pof.planning.traced_graph import traced_graph

LOADS = ("LOAD_ATTR", "LOAD_METHOD")
ASKS_ONLY = ("dtype", "device", "shape", "ndim", "size", "dim", "numel", "requires_grad", "is_cuda", "is_meta")
"""Attributes and methods of a weight that tell nothing of its values."""
PRODUCTS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
MATRIX_PRODUCTS = (
    *(torch.matmul, torch.mm, torch.bmm, torch.mv, torch.addmm, torch.addmv, torch.baddbmm, torch.einsum),
    *(torch.tensordot, operator.matmul, "matmul", "mm", "bmm", "mv", "addmm", "addmv", "baddbmm"),
)
KEEP_ZEROS = (
    *(operator.mul, operator.truediv, operator.neg, operator.getitem, operator.imul, operator.itruediv),
    *(torch.mul, torch.div, torch.neg, torch.cat, torch.stack, torch.chunk, torch.split, torch.transpose, torch.t),
    *(torch.reshape, torch.permute, torch.flatten, torch.squeeze, torch.unsqueeze, torch.flip, torch.clone),
    *(F.normalize, F.dropout, F.pad),
    *("mul", "div", "neg", "to", "type", "type_as", "float", "half", "bfloat16", "double", "contiguous", "clone"),
    *("detach", "view", "view_as", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "squeeze"),
    *("unsqueeze", "chunk", "split", "expand", "repeat", "flip", "mul_", "div_", "data", "T", "mT"),
)
"""What may be done to a weight before it is used: zeros stay zeros, in their places or moved."""
BY_THE_FIRST = (operator.truediv, operator.itruediv, torch.div, "div", "div_")
"""Those that keep the zeros of what they divide only."""
REDUCTIONS = (
    *(torch.mean, torch.sum, torch.norm, torch.std, torch.var, torch.var_mean, torch.std_mean, torch.max, torch.min),
    *("mean", "sum", "norm", "std", "var", "max", "min", "amax", "amin", torch.amax, torch.amin, torch.linalg.norm),
    torch.linalg.vector_norm,
)
"""A few numbers made of a weight: what they are added to loses its zeros, what they scale does not."""

Chain = tuple[str, ...]
"""The names from a module to the weight of one of its parts, such as ("conv", "weight")."""


@dataclass(frozen=True)
class Borrowed:
    """What a module does with the weight of one of its parts."""

    keeps_zeros: bool | None
    """Whether all that it multiplies has the weight's zeros; None if it cannot be traced, so that nobody knows."""
    reader: str
    """The class of the module."""


@dataclass(frozen=True)
class _Reads:
    """Which weights the code of a class reads."""

    some: bool = False
    """Whether it reads an attribute called weight, of anything."""
    chains: frozenset[Chain] = frozenset()
    """Those of parts by name."""


_KNOWN: WeakKeyDictionary[type, _Reads] = WeakKeyDictionary()
"""What each class of modules reads."""


def borrowed_weights(model: nn.Module) -> dict[object, Borrowed]:
    """What modules do with weights that they read from their parts, by the identity of the parameter."""
    found: dict[object, Borrowed] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in _KNOWN:
            _KNOWN[kind] = _reads(kind)
        if not _KNOWN[kind].some or not any(part is not module and part._parameters for part in module.modules()):
            continue
        own = {id(parameter) for parameter in module._parameters.values()}
        graph = traced_graph(module, _defaults(module))
        judged: list[tuple[nn.Parameter, bool | None]]
        if graph is None:
            judged = [(weight, None) for weight in _read_unseen(module, _KNOWN[kind].chains)]
        else:
            weights = {node: _parameter_at(module, str(node.target)) for node in graph.nodes if node.op == "get_attr"}
            read = {id(weight): weight for weight in weights.values() if weight is not None and id(weight) not in own}
            judged = [
                (weight, _keeps_zeros(graph, {node for node, each in weights.items() if each is weight}))
                for weight in read.values()
            ]
        for weight, keeps in judged:
            known = found.get(identity(weight))
            if known is None or known.keeps_zeros is not False:
                found[identity(weight)] = Borrowed(keeps, kind.__name__)
    return found


def _reads(kind: type[nn.Module]) -> _Reads:
    """Which weights `forward` reads, or a method or property that it uses. Code of torch's own does not count."""
    some, chains = False, set[Chain]()
    waiting, seen = ["forward"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for code in _codes_of(kind, name):
            waiting += code.co_names
            some |= _reads_a_weight(code)
            chains |= {chain for chain in _chains(code) if len(chain) > 1 and chain[-1] == "weight"}
    return _Reads(some, frozenset(chains))


def _codes_of(kind: type[nn.Module], name: str) -> Iterator[CodeType]:
    """The code of a method or property, in every class that defines it, and of the functions inside of it."""
    for base in kind.__mro__:
        found = vars(base).get(name)
        method = inspect.unwrap(found.fget if isinstance(found, property) and found.fget else found) if found else None
        if not inspect.isfunction(method) or base.__module__.startswith("torch."):
            continue
        waiting = [method.__code__]
        while waiting:
            code = waiting.pop()
            waiting += [each for each in code.co_consts if isinstance(each, CodeType)]
            yield code


def _reads_a_weight(code: CodeType) -> bool:
    """Whether the code reads an attribute called weight, and not just its type or shape."""
    names = [(each.opname, each.argval) for each in dis.get_instructions(code)]
    return any(
        opname in LOADS and name == "weight" and not (after[0] in LOADS and after[1] in ASKS_ONLY)
        for (opname, name), after in zip(names, [*names[1:], ("", None)], strict=True)
    ) or ("weight" in code.co_consts and "getattr" in code.co_names)


def _chains(code: CodeType) -> Iterator[Chain]:
    """The attributes of attributes of `self` that the code reads, up to where it asks for no values."""
    chain: list[str] | None = None
    for each in dis.get_instructions(code):
        if each.opname in LOADS:
            if chain is not None:
                chain.append(str(each.argval))
            continue
        if chain and chain[-1] not in ASKS_ONLY:
            # A method or an attribute of the weight itself, such as float() or data, is not part of the name.
            last = len(chain) - 1 - chain[::-1].index("weight") if "weight" in chain else len(chain) - 1
            yield tuple(chain[: last + 1])
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        chain = [] if each.opname.startswith("LOAD_FAST") and names[-1:] == code.co_varnames[:1] else None


def _read_unseen(module: nn.Module, chains: frozenset[Chain]) -> list[nn.Parameter]:
    """The weights that a module reads which cannot be traced; those of all its parts if it names none."""
    if chains:
        found = [_weight_of_a_part(module, chain) for chain in chains]
    else:
        found = [part._parameters.get("weight") for part in module.modules() if part is not module]
    return [weight for weight in found if weight is not None and weight.dim() > 1]


def _weight_of_a_part(module: nn.Module, chain: Chain) -> nn.Parameter | None:
    part: Any = module
    for name in chain[:-1]:
        part = getattr(part, name, None)
        if not isinstance(part, nn.Module):
            return None
    found: nn.Parameter | None = part._parameters.get(chain[-1])
    return found


def _parameter_at(module: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter of `module` with that name, if it is one that could be pruned; not a bias."""
    try:
        found = module.get_parameter(name)
    except AttributeError:
        return None
    return found if found.dim() > 1 else None


def _defaults(module: nn.Module) -> dict[str, Any]:
    """The inputs of `forward` that have default values; they are traced as constants."""
    parameters = inspect.signature(module.forward).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def _keeps_zeros(graph: fx.Graph, weights: set[fx.Node]) -> bool:
    """Whether all products of what is made of one weight, which these nodes read, are of values with the same zeros."""
    same: set[fx.Node] = set(weights)
    other: set[fx.Node] = set()
    for node in graph.nodes:
        inputs = node.all_input_nodes
        with_zeros, without = (any(each in group for each in inputs) for group in (same, other))
        if node in same or not (with_zeros or without):
            continue
        called = node.op in ("call_function", "call_method")
        target = node.args[1] if node.target is getattr else node.target
        if called and (target in ASKS_ONLY or target in REDUCTIONS):
            continue
        if called and (target in PRODUCTS or target in MATRIX_PRODUCTS):
            second = [*node.args[1:2], node.kwargs.get("weight")]
            if any(each in other for each in (inputs if target in MATRIX_PRODUCTS else second)):
                return False
        elif called and not without and target in KEEP_ZEROS and (target not in BY_THE_FIRST or inputs[0] in same):
            same.add(node)
        else:
            other.add(node)
            if node.op == "call_method" and str(target).endswith("_"):
                # What is written to has changed as well.
                other.add(inputs[0])
                same.discard(inputs[0])
    return True
