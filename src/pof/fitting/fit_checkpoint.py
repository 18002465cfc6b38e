"""A file that keeps what a fit has finished, so that a killed one can go on."""

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pof.errors import PofError
from pof.file.atomic_write import replacing


class FitCheckpoint:
    """The tensors of a network and its teacher after least squares, and what they were made from.

    Args:
        path: where it is kept.
        original: the tensors that the network came with.
        scope: the scope of the fit.
        planned: the names of the weights that are pruned.
    """

    def __init__(self, path: Path, original: Mapping[str, Tensor], scope: str, planned: Iterable[str]) -> None:
        self._path = path
        self._origin = {"scope": scope, "planned": list(planned), "tensors": _checksum(original)}

    def save(self, teacher: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> None:
        """Write the file whole, or not at all."""
        networks = {"teacher": teacher, "model": model}
        found = {
            "origin": self._origin,
            **{key: {name: value.detach().cpu() for name, value in each.items()} for key, each in networks.items()},
        }
        with replacing(self._path) as temporary:
            torch.save(found, temporary)

    @torch.no_grad()
    def load(self, teacher: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> bool:
        """Fill the tensors of both networks from the file; return whether there is one.

        Raises:
            PofError: the file cannot be read, or belongs to another network.
        """
        if not self._path.exists():
            return False
        try:
            found: Any = torch.load(self._path, map_location="cpu", weights_only=True)
            origin, kept = found["origin"], (found["teacher"], found["model"])
        except Exception as error:
            raise PofError(f"{str(self._path)!r} is not the checkpoint of a fit: delete it to begin anew") from error
        if origin != self._origin:
            raise PofError(
                f"{str(self._path)!r} belongs to a fit of another network, plan or scope: delete it to begin anew"
            )
        for tensors, values in zip((teacher, model), kept, strict=True):
            for name, tensor in tensors.items():
                tensor.copy_(values[name])
        return True

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """A checksum of names and values."""
    found = 0
    for name, tensor in tensors.items():
        raw = tensor.detach().cpu().contiguous().view(-1)
        found = zlib.crc32(raw.view(torch.uint8).numpy().tobytes(), zlib.crc32(name.encode(), found))
    return found
