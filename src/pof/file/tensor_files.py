"""Files of plain tensors that other tools read: safetensors, and torch's own .pth."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from pof.errors import PofError
from pof.file.atomic_write import replacing
from pof.file.locations import suffix_of

ENDINGS = (".safetensors", ".pth", ".pt")
MOST_COPIES = 16
"""How many times as large a safetensors file may be for tied tensors."""


def write_tensors(tensors: Mapping[str, Tensor], path: str | Path, metadata: Mapping[str, str] | None = None) -> int:
    """Write a state_dict by the ending of `path`, whole or not at all; return its bytes.

    Only safetensors keeps the metadata.
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_meta:
            raise PofError(f"{name!r} of the state_dict is no plain tensor with values: take it out, or materialise it")
    if suffix_of(path) == ".safetensors":
        _refuse_many_copies(tensors)
        with replacing(path) as temporary:
            # Tied tensors are one memory, which safetensors does not write twice.
            save_tensors({name: _plain(value) for name, value in tensors.items()}, temporary, metadata or {})
            return temporary.stat().st_size
    try:
        with replacing(path) as temporary:
            torch.save({name: value.detach().cpu() for name, value in tensors.items()}, temporary)
            return temporary.stat().st_size
    except RuntimeError as error:  # torch's for a full disk
        raise PofError(f"cannot write {str(path)!r}: {str(error).splitlines()[0]}") from None


def save_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str]) -> None:
    """As safetensors' own `save_file`; a file that cannot be written is an OSError as everywhere else."""
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
        raise OSError(str(error)) from None


def _plain(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()


def _refuse_many_copies(tensors: Mapping[str, Tensor]) -> None:
    """Tied tensors are written once for each name: not if that makes a small file a huge one."""
    once = {value.data_ptr(): value.nbytes for value in tensors.values()}
    if sum(value.nbytes for value in tensors.values()) > MOST_COPIES * sum(once.values()):
        raise PofError("safetensors holds tied tensors once a name, which are too many here: write a .pth file")
