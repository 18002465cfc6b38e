"""Files of plain tensors that other tools read: safetensors, and torch's own .pth."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pof.errors import PofError, first_line
from pof.file.atomic_write import replacing
from pof.file.locations import suffix_of

ENDINGS = (".safetensors", ".pth", ".pt")
MOST_COPIES = 16
"""How many times as large as its tensors a safetensors file may be when tensors are tied."""


def write_tensors(tensors: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None) -> int:
    """Write a state_dict, whole or not at all, and return the size of the file in bytes.

    The ending of `path` decides the format. Only safetensors keeps the metadata.
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
            raise PofError(f"{name!r} of the state_dict is not a plain tensor with values: remove or materialise it")
    if suffix_of(path) == ".safetensors":
        _refuse_many_copies(tensors)
        with replacing(path) as temporary:
            # Tied tensors share memory, which safetensors refuses to write twice.
            save_tensors({name: _plain(value) for name, value in tensors.items()}, temporary, metadata or {})
            return temporary.stat().st_size
    try:
        with replacing(path) as temporary:
            torch.save({name: value.detach().cpu() for name, value in tensors.items()}, temporary)
            return temporary.stat().st_size
    except RuntimeError as error:  # what torch raises for a full disk
        raise PofError(f"cannot write {str(path)!r}: {first_line(error)}") from None


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """Like safetensors' own `save_file`, but a file that cannot be written is an OSError, as everywhere else."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise PofError("this needs safetensors: pip install safetensors, or write a .pth file") from None
    for name, value in tensors.items():
        if value.dtype is torch.complex128 or name == "__metadata__":
            raise PofError(f"safetensors cannot hold {name!r} ({value.dtype}): write a .pth file")
    try:
        save_file(dict(tensors), path, metadata=dict(metadata))
    except SafetensorError as error:
        raise OSError(first_line(error)) from None


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()


def _refuse_many_copies(tensors: Mapping[str, Tensor]) -> None:
    """Refuse a file that would be huge because tied tensors are written once for each name."""
    once = {value.data_ptr(): value.nbytes for value in tensors.values()}
    if sum(value.nbytes for value in tensors.values()) > MOST_COPIES * sum(once.values()):
        raise PofError("safetensors stores tied tensors once per name, which is too often here: write a .pth file")
