"""Export a model's graph with `torch.export`, with the batch size left open where possible."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pof.errors import PofError


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
        return torch.export.export(model, inputs, named, dynamic_shapes=sizes)  # type: ignore[arg-type]


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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        remedy = "; set model.config.use_cache = False" if "cache_utils" in reason else ""
        raise PofError(f"the model cannot be exported: {reason}{remedy}") from error


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the warnings and the pages of logs that torch writes about a failed export."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
