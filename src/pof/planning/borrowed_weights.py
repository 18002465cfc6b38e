"""Weights that a module takes from one of its parts and computes with itself, perhaps after changing them.

`F.conv2d(x, standardised(self.conv.weight))` convolves with numbers where the stored weight has zeros, and the part's
own class does not show it. The code of `forward` is searched for such reads, and where there is one, the module is
traced: each value either has its zeros where the weight has them, or not.
"""

import copy
import dis
import inspect
import operator
from collections.abc import Iterator
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx, nn
from torch.nn import functional as F

ASKS_ONLY = ("dtype", "device", "shape", "ndim", "size", "dim", "numel", "requires_grad", "is_cuda", "is_meta")
"""Attributes and methods of a weight that tell nothing of its values."""
PRODUCTS = (F.linear, F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
MATRIX_PRODUCTS = (torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.einsum, operator.matmul, "matmul", "mm", "bmm")
KEEP_ZEROS = (
    *(operator.mul, operator.truediv, operator.neg, operator.getitem, operator.imul, operator.itruediv),
    *(torch.mul, torch.div, torch.neg, torch.cat, torch.stack, torch.chunk, torch.split, torch.transpose, torch.t),
    *(torch.reshape, torch.permute, torch.flatten, torch.squeeze, torch.unsqueeze),
    *("mul", "div", "neg", "to", "type", "type_as", "float", "half", "bfloat16", "double", "contiguous", "clone"),
    *("detach", "view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "squeeze", "unsqueeze"),
    *("chunk", "split", "expand", "repeat", "data", "T", "mT"),
)
"""What may be done to a weight before it is used: zeros stay zeros, in their places or moved."""
BY_THE_FIRST = (operator.truediv, operator.itruediv, torch.div, "div")
"""Those that keep the zeros of what they divide only."""

Chain = tuple[str, ...]
"""The names from a module to the weight of one of its parts, such as ("conv", "weight")."""
_KNOWN: WeakKeyDictionary[type, frozenset[Chain]] = WeakKeyDictionary()
"""What each class of modules reads."""


def borrowed_weights(model: nn.Module) -> dict[str, bool | None]:
    """For weights that a module reads from its parts, by name: whether what it multiplies has the same zeros.

    None means that the module cannot be traced, so nobody knows.
    """
    found: dict[str, bool | None] = {}
    for path, module in model.named_modules():
        kind = type(module)
        if kind not in _KNOWN:
            _KNOWN[kind] = _reads(kind)
        chains = [chain for chain in _KNOWN[kind] if _is_weight_of_a_part(module, chain)]
        if chains:
            graph = _traced(module)
            for chain in chains:
                name = ".".join(chain)
                found[f"{path}.{name}" if path else name] = None if graph is None else _keeps_zeros(graph, name)
    return found


def _reads(kind: type[nn.Module]) -> frozenset[Chain]:
    """The weights of parts whose values `forward`, or a method that it calls, reads."""
    found: set[Chain] = set()
    waiting, seen = ["forward"], set[str]()
    while waiting:
        name = waiting.pop()
        method = getattr(kind, name, None)
        code = getattr(inspect.unwrap(method), "__code__", None) if inspect.isfunction(method) else None
        if name in seen or code is None or method.__module__.startswith("torch."):
            continue
        seen.add(name)
        waiting += code.co_names
        found |= {chain for chain in _chains(code) if len(chain) > 1 and chain[-1] == "weight"}
    return frozenset(found)


def _chains(code: CodeType) -> Iterator[Chain]:
    """The attributes of attributes of `self` that the code reads, up to where it asks for no values."""
    chain: list[str] | None = None
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if chain is not None:
                chain.append(str(each.argval))
            continue
        if chain and chain[-1] not in ASKS_ONLY:
            # A method or an attribute of the weight itself, such as float() or data, is not part of the name.
            last = len(chain) - 1 - chain[::-1].index("weight") if "weight" in chain else len(chain) - 1
            yield tuple(chain[: last + 1])
        names = each.argval if isinstance(each.argval, tuple) else (each.argval,)
        chain = [] if each.opname.startswith("LOAD_FAST") and names[-1:] == code.co_varnames[:1] else None


def _is_weight_of_a_part(module: nn.Module, chain: Chain) -> bool:
    part: Any = module
    for name in chain[:-1]:
        part = getattr(part, name, None)
        if not isinstance(part, nn.Module):
            return False
    return isinstance(part._parameters.get(chain[-1]), nn.Parameter)


def _traced(module: nn.Module) -> fx.Graph | None:
    """The graph of one module, or None; the module itself is not called, and shares its weights."""
    shared = {id(tensor): tensor for tensor in module.parameters()}
    try:
        with torch.random.fork_rng(devices=[]):
            parameters = inspect.signature(module.forward).parameters.values()
            defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
            return fx.Tracer().trace(copy.deepcopy(module, shared), defaults)
    except Exception:  # whatever a module does with what is not a tensor
        return None


def _keeps_zeros(graph: fx.Graph, name: str) -> bool:
    """Whether all products of what is made of the weight `name` are of values with the same zeros."""
    same: set[fx.Node] = set()
    other: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr" and node.target == name:
            same.add(node)
            continue
        with_zeros, without = (any(each in group for each in node.all_input_nodes) for group in (same, other))
        if not with_zeros and not without:
            continue
        target = node.args[1] if node.target is getattr else node.target
        if node.op in ("call_function", "call_method") and target in ASKS_ONLY:
            continue
        if target in PRODUCTS or target in MATRIX_PRODUCTS:
            weights = (
                node.all_input_nodes if target in MATRIX_PRODUCTS else [*node.args[1:2], node.kwargs.get("weight")]
            )
            if any(each in other for each in weights):
                return False
        elif with_zeros and target in KEEP_ZEROS and (target not in BY_THE_FIRST or node.args[0] in same):
            same.add(node)
        else:
            other.add(node)
    return True
