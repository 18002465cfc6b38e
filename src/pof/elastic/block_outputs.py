"""What the blocks of a network give, beside its outputs: one image teaches more that way.

A thousand numbers per image are soon learnt by heart, and new images gain nothing. The outputs of the blocks are many
more, at every place of an image. lab/notes.md has what was measured, and what was not.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

TINY = 1e-12


def block_names(model: nn.Module, planned: Iterable[str]) -> list[str]:
    """The smallest modules that hold two planned weights or more: residual blocks, attention, perceptrons.

    The whole network is none, nor is a module that holds another block.
    """
    counts: dict[str, int] = {}
    for name in planned:
        parts = name.split(".")
        # The weight's own module counts too: attention has several in itself.
        for depth in range(1, len(parts)):
            prefix = ".".join(parts[:depth])
            counts[prefix] = counts.get(prefix, 0) + 1
    found = [name for name, count in counts.items() if count > 1]
    return [name for name in found if not any(other.startswith(f"{name}.") for other in found)]


class BlockOutputs:
    """Compares what the blocks of a network give with what those of its teacher gave in the last pass.

    Args:
        model: the network that learns.
        teacher: a copy of it.
        planned: the names of the weights that are pruned.
    """

    def __init__(self, model: nn.Module, teacher: nn.Module, planned: Iterable[str]) -> None:
        self._names = block_names(model, planned)
        self._model, self._teacher = model, teacher
        self._wanted: dict[str, list[Tensor]] = {}
        self._found: dict[str, list[Tensor]] = {}

    @contextmanager
    def of_teacher(self) -> Iterator[None]:
        """Remember what the teacher's blocks give inside the block."""
        self._wanted = {}
        with self._watching(self._teacher, self._wanted):
            yield

    @contextmanager
    def of_model(self) -> Iterator[None]:
        """Look at what the model's blocks give inside the block; ask for the `distance` there."""
        self._found = {}
        try:
            with self._watching(self._model, self._found):
                yield
        finally:
            self._found = {}

    def distance(self) -> Tensor | None:
        """The squared errors of the outputs, as shares of the teacher's variances, averaged; None without blocks."""
        parts = []
        for name, wanted in self._wanted.items():
            for ours, theirs in zip(self._found.get(name, ()), wanted, strict=False):
                if ours.shape == theirs.shape:
                    theirs = theirs.float()
                    parts.append((ours.float() - theirs).square().mean() / theirs.var().clamp(min=TINY))
        return torch.stack(parts).mean() if parts else None

    @contextmanager
    def _watching(self, network: nn.Module, seen: dict[str, list[Tensor]]) -> Iterator[None]:
        def look(name: str, output: Any) -> None:
            tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
            if tensors and tensors[0].is_floating_point() and tensors[0].numel() > 1:
                # Neighbouring places of an image tell much the same.
                seen.setdefault(name, []).append(tensors[0][:, :, ::2, ::2] if tensors[0].dim() == 4 else tensors[0])

        hooks = [
            network.get_submodule(name).register_forward_hook(lambda _, args, output, name=name: look(name, output))
            for name in self._names
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
