"""Export a model in its present state for other tools: safetensors, .pth, ONNX or `torch.export`'s .pt2."""

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from pof.errors import PofError, first_line
from pof.file.atomic_write import check_target, replacing
from pof.file.locations import suffix_of
from pof.file.tensor_files import ENDINGS as TENSORS
from pof.file.tensor_files import write_tensors
from pof.planning.wrappers import unwrap
from pof.runtime.quiet_torch import quietly
from pof.runtime.torch_export import exported_graph, without_cache

GRAPHS = (".onnx", ".pt2")
TOLERANCE = 1e-4
"""How far outputs may be from torch's, relative to the largest of them (or to 1, if all are smaller)."""
HALF_TOLERANCE = 2e-2
"""The same tolerance for models in half precision."""
ONE_FILE = 1 << 30
"""The most bytes of weights in one ONNX file; larger models would need a second file beside it."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote."""

    path: str
    bytes: int
    free_batch: bool | None = None
    """Whether the file takes batches of any size; None for a file of tensors."""
    deviation: float | None = None
    """The largest difference from torch's outputs, relative to the largest; None if nothing here can run the file."""


def export(model: nn.Module, path: str | Path, example: Any = None) -> Exported:
    """Write `model` in its present state: dense, or as pruned by a live `pof.Elastic`. The model is not changed.

    Args:
        model: any module. A graph is exported in evaluation mode.
        path: a path or URL. Its ending says what is written: .safetensors or .pth for the state_dict, with the model's
            own keys; .onnx or .pt2 for the whole network, for batches of any size where export allows it.
        example: the inputs that a graph needs: a tensor, a tuple of inputs, or a dict of keyword arguments.

    Returns:
        What was written. A graph is run again and compared with the model; an ONNX file needs onnxruntime for that.

    Raises:
        PofError: the model cannot be exported, or the written file gives other outputs.

    Example:
        >>> import tempfile, pof
        >>> model = torch.nn.Linear(8, 4)
        >>> with tempfile.TemporaryDirectory() as folder, pof.Elastic(model).at(0.5):
        ...     _ = export(model, f"{folder}/half.pth")
        ...     int((torch.load(f"{folder}/half.pth")["weight"] == 0).sum())
        16
    """
    if not isinstance(model, nn.Module):
        raise PofError(f"model is a {type(model).__name__}: pass a torch.nn.Module, then the path")
    target = check_target(path, (*TENSORS, *GRAPHS))
    inner = unwrap(model)
    if suffix_of(target) in TENSORS:
        return Exported(str(path), write_tensors(inner.state_dict(), target))
    if example is None:
        raise PofError(f"{suffix_of(target)} holds a graph, which needs inputs: pass example=, such as a batch")
    args, keywords = _inputs(example)
    try:
        copied = without_cache(deepcopy(inner).eval())
    except Exception as error:  # modules may fail with any error
        raise PofError(f"the model cannot be copied, which an export needs: {first_line(error)}") from error
    graph = exported_graph(copied, args, keywords)
    with replacing(target) as temporary:
        if suffix_of(target) == ".onnx":
            _write_onnx(graph, temporary)
            outputs = _run_onnx(temporary, args, keywords)
        else:
            with quietly(), torch.no_grad():  # torch warns about a name that does not end in .pt2
                torch.export.save(graph, temporary)
                outputs = torch.export.load(temporary).module()(*args, **keywords)
        deviation = None if outputs is None else _deviation(copied, args, keywords, outputs)
        if deviation is not None and deviation > _tolerance(copied):
            raise PofError(f"the exported {path!s} gives outputs that differ by {deviation:.1e}: it is not written")
        size = temporary.stat().st_size
    return Exported(str(path), size, _is_free(graph), deviation)


def _tolerance(model: nn.Module) -> float:
    half = any(weight.dtype in (torch.float16, torch.bfloat16) for weight in model.parameters())
    return HALF_TOLERANCE if half else TOLERANCE


def _inputs(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments to call the model with; batches of one are doubled, as export treats a size of 1 as a constant."""
    named = dict(example) if isinstance(example, Mapping) else {}
    listed = () if named else tuple(example) if isinstance(example, Sequence) else (example,)
    tensors = [leaf for leaf in pytree.tree_leaves((listed, named)) if isinstance(leaf, Tensor)]
    if not tensors:
        raise PofError(f"example={example!r} holds no tensor: pass a batch of inputs")
    if any(leaf.dim() and len(leaf) != 1 for leaf in tensors):
        return listed, named
    args, keywords = pytree.tree_map(
        lambda leaf: torch.cat((leaf, leaf)) if isinstance(leaf, Tensor) and leaf.dim() else leaf, (listed, named)
    )
    return args, keywords


def _is_free(graph: ExportedProgram) -> bool:
    """Whether each input's first size, if it has one, may vary."""
    inputs = {name for name in graph.graph_signature.user_inputs if isinstance(name, str)}
    values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "placeholder" and node.name in inputs]
    sizes = [value.shape[0] for value in values if isinstance(value, Tensor) and value.dim()]
    return bool(sizes) and not any(isinstance(size, int) for size in sizes)


def _write_onnx(graph: ExportedProgram, path: Path) -> None:
    size = sum(value.nbytes for value in graph.state_dict.values())
    if size > ONE_FILE:
        raise PofError(f"the weights take {size:,} bytes, and an ONNX file holds at most {ONE_FILE:,}: export a .pt2")
    try:
        with quietly(), torch.no_grad():
            torch.onnx.export(graph, (), path, dynamo=True, external_data=False, verbose=False)
    except ModuleNotFoundError as error:
        raise PofError(f"ONNX needs {error.name}: pip install onnx onnxscript") from None
    except torch.onnx.OnnxExporterError as error:
        raise PofError(f"torch cannot write this model as ONNX: {first_line(error.__cause__ or error)}") from error


def _run_onnx(path: Path, args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Tensor] | None:
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # it has its own errors, such as for operations that it lacks in bfloat16
        raise PofError(f"onnxruntime cannot run what torch wrote: {first_line(error)}") from error
    leaves = [leaf for leaf in pytree.tree_leaves((args, keywords)) if isinstance(leaf, Tensor)]
    fed = {item.name: leaf.detach().cpu().numpy() for item, leaf in zip(session.get_inputs(), leaves, strict=True)}
    return [torch.from_numpy(value) for value in session.run(None, fed)]


def _deviation(model: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any], outputs: Any) -> float:
    with torch.no_grad():
        wanted = model(*args, **keywords)
    worst = 0.0
    for ours, theirs in zip(_tensors(outputs), _tensors(wanted), strict=True):
        finite = theirs.isfinite()
        if ours.shape != theirs.shape or not torch.equal(ours[~finite].nan_to_num(), theirs[~finite].nan_to_num()):
            return math.inf
        if bool(finite.any()):
            difference = float((ours - theirs)[finite].abs().max()) / max(1.0, float(theirs[finite].abs().max()))
            worst = max(worst, difference if math.isfinite(difference) else math.inf)
    return worst


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf.detach().cpu().double() for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
