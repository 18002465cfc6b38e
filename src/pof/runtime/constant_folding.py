"""Compute beforehand what depends on constants only, such as the joined biases of queries, keys and values."""

import operator
from dataclasses import replace

import torch

from pof.runtime.program import Operation, Program

aten = torch.ops.aten
RANDOM = torch.Tag.nondeterministic_seeded
UNSET = (aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default)
"""Operations whose results are not set: they are there to be written to."""


def folded(program: Program) -> Program:
    """The program without the operations whose results are the same at every call; `derived` has them instead.

    They are computed from the weights as they are, and again at every update.
    """
    written = {item.args[0].name for item in program.items if _writes(item) and hasattr(item.args[0], "name")}
    known = set(program.constants) - set(program.changes.buffers)
    derived: list[Operation] = []
    left: list[Operation] = []
    for item in program.items:
        if item.name not in written and _can_be_folded(item) and known.issuperset(item.refs()):
            derived.append(item)
            known.add(item.name)
        else:
            left.append(item)
    return replace(program, items=tuple(left), derived=tuple(derived))


def _writes(item: Operation) -> bool:
    schema = getattr(item.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _can_be_folded(item: Operation) -> bool:
    """Whether the operation gives the same result for the same arguments, and does nothing else."""
    if item.target is operator.getitem:
        return True
    tags = getattr(item.target, "tags", None)
    if tags is None or not hasattr(item.target, "_schema"):
        return False
    return not _writes(item) and RANDOM not in tags and item.target not in UNSET
