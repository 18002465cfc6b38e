"""Checkpoints: one safetensors file, written whole or not at all; nothing is ever unpickled.

Tensors are stored flat. Numbers, and the place of each tensor, are stored as JSON in the file's own header.
"""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pof.errors import PofError, first_line
from pof.file.atomic_write import replacing
from pof.file.tensor_files import save_tensors

Tree = Any
"""Dicts and lists of tensors, numbers, strings and None."""


def write_tree(path: Path, tree: Tree) -> None:
    """Write `tree` to a temporary file, then rename it to `path`: the old file stays until the new one is complete."""
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(tree, "", tensors)
    text = json.dumps(skeleton)
    with replacing(path) as temporary:
        save_tensors(tensors, temporary, {"pof": text, "checksum": _checksum(text, tensors)})


def read_tree(path: Path) -> Tree:
    """Read what `write_tree` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names: list[str] = list(file.keys())
            tensors = {name: file.get_tensor(name) for name in names}
        if metadata["checksum"] != _checksum(metadata["pof"], tensors):
            raise ValueError("its checksum is wrong")
        return _unflatten(json.loads(metadata["pof"]), tensors)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise PofError(
            f"the checkpoint {str(path)!r} is broken ({first_line(error)}): delete it to start over"
        ) from None


def _flatten(tree: Tree, path: str, tensors: dict[str, Tensor]) -> Tree:
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach().cpu().contiguous().clone()
        return {"tensor": path}
    if isinstance(tree, dict):
        return {"dict": [[key, _flatten(value, f"{path}/{key}", tensors)] for key, value in tree.items()]}
    if isinstance(tree, (list, tuple)):
        return {"list": [_flatten(value, f"{path}/{i}", tensors) for i, value in enumerate(tree)]}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return {"value": tree}
    raise PofError(f"{path or 'the checkpoint'} holds a {type(tree).__name__}, which cannot be stored")


def _unflatten(skeleton: Tree, tensors: dict[str, Tensor]) -> Tree:
    ((kind, content),) = skeleton.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _unflatten(value, tensors) for key, value in content}
    if kind == "list":
        return [_unflatten(value, tensors) for value in content]
    return content


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    """Return a checksum of everything that is stored: a disk may return other bytes than it was given."""
    found = zlib.crc32(text.encode())
    for name in sorted(tensors):
        value = tensors[name]
        found = zlib.crc32(f"{name} {value.dtype} {tuple(value.shape)}".encode(), found)
        found = zlib.crc32(memoryview(value.reshape(-1).view(torch.uint8).numpy().data), found)
    return f"{found:08x}"
