"""Files to break, and a reader that takes exactly the right tensors or a PofFileError of one line."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import pof
from pof.file import header
from tests.small_models import FewBytes, randomised

MAGIC = header.MAGIC
STATES = [(0.0, None), (0.9, None), (0.8, None), (0.7, 0.3), (0.5, 0.2)]


def small() -> nn.Module:
    return randomised(FewBytes())


def saved(folder: Path, model: nn.Module, **chosen: Any) -> bytes:
    file = folder / "whole.pof"
    pof.save(model, file, **chosen)
    return file.read_bytes()


class BytesSource:
    """A file in memory: thousands of them take no time."""

    name = "broken.pof"

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, start: int, length: int) -> bytes:
        assert length <= max(len(self._data), 1 << 26), "a local file would be asked for that much memory"
        return self._data[start : start + length]

    def size(self) -> int:
        return len(self._data)


def read(data: bytes, states: list[Any], **how: Any) -> list[dict[str, torch.Tensor] | None]:
    """The tensors at each state, or None where they are refused by a PofFileError of one line."""
    found: list[dict[str, torch.Tensor] | None] = []
    try:
        with mock.patch("pof.file.pof_file.open_source", return_value=BytesSource(data)):
            opened = pof.open("broken.pof", **how)
    except pof.PofFileError as error:
        refused(error)
        return [None] * len(states)
    for state in states:
        try:
            found.append(opened.state_dict(*(opened.densest if state is None else state)))
        except pof.PofFileError as error:
            refused(error)
            found.append(None)
    return found


def refused(error: pof.PofFileError) -> None:
    text = str(error)
    if "broken.pof" not in text or "\n" in text or len(text) > 600:
        raise AssertionError(f"not a message for a user: {text!r}")


def as_file(folder: Path, data: bytes) -> Path:
    (file := folder / "put.pof").write_bytes(data)
    return file
