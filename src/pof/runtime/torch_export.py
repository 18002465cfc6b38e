"""Export a model's graph with `torch.export`, with the batch size left open where possible."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pof.errors import PofError, first_line
from pof.runtime.quiet_torch import quietly

OF_A_RANGE = re.compile(r"[^ ]+\.size\(\)\[\d+\] (<|<=|>|>=) \d+|[^ ]+\.size\(\)\[\d+\] != [01]")
"""A condition on one size that its range tells too."""
DATA_DEPENDENT = ("DataDependent", "data-dependent", "DynamicOutputShape", "Could not guard", "unbacked")
"""What torch's errors say where a size or a branch depends on values."""


def exported_graph(
    model: nn.Module, example: Sequence[Any], keywords: Mapping[str, Any] | None = None
) -> ExportedProgram:
    """The graph of `model` for inputs like `example` and `keywords`.

    Raises:
        PofError: the model cannot be exported.
    """
    # Export leaves marks on the tensors that it sees: give it fresh ones.
    inputs, named = (
        pytree.tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, part)
        for part in (tuple(example), dict(keywords or {}))
    )
    sizes = torch.export.ShapesCollection()
    for leaf in pytree.tree_leaves((inputs, named)):
        if isinstance(leaf, Tensor) and leaf.dim():
            sizes[leaf] = {0: torch.export.Dim.AUTO}
    with _one_line():
        try:
            found = torch.export.export(model, inputs, named, dynamic_shapes=sizes)  # type: ignore[arg-type]
        except AssertionError:
            # Open sizes cannot be told to export for inputs that the signature does not name.
            return torch.export.export(model, inputs, named)
        if _has_more_guards(found):
            # The graph holds for some sizes only, such as even ones: export it for these sizes alone.
            found = torch.export.export(model, inputs, named)
        return found


def _has_more_guards(graph: ExportedProgram) -> bool:
    """Whether a graph with an open size holds under conditions that it does not check, besides a range."""
    if not graph.range_constraints:
        return False
    guards = getattr(graph, "_guards_code", None)
    return guards is None or not all(OF_A_RANGE.fullmatch(guard) for guard in guards)


def functional(graph: ExportedProgram) -> ExportedProgram:
    """The same graph without operations that write in place."""
    with _one_line():
        found: ExportedProgram = graph.run_decompositions({})
        return found


def without_cache(model: nn.Module) -> nn.Module:
    """Tell a model of transformers, in place, not to return a cache of keys and values, which no graph can hold."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", None):
            config.use_cache = False  # type: ignore[union-attr]
    return model


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        with torch.no_grad(), quietly():
            yield
    except Exception as error:  # export fails in many ways, with many kinds of errors
        if any(word in f"{type(error).__name__} {error}" for word in DATA_DEPENDENT):
            raise PofError(
                "the model cannot be exported: a size or a branch depends on its data. Compile the part before that, "
                "such as model.backbone.forward = pof.compile(model.backbone, images)"
            ) from error
        raise PofError(f"the model cannot be exported: {first_line(error)}") from error
