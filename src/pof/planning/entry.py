"""One weight tensor of a plan."""

from dataclasses import dataclass
from math import prod

from torch import Tensor

from pof.ranking.row_layout import PLAIN, RowLayout
from pof.ranking.shares import LayerSize


@dataclass(frozen=True)
class Entry:
    """One weight tensor that is pruned."""

    name: str
    kind: str
    """The class of its layer; empty if only the tensors are known, not the model."""
    shape: tuple[int, ...]
    layout: RowLayout = PLAIN
    """Where its rows lie."""
    sparsity: float | None = None
    """The fixed sparsity of this weight whenever the model is not dense; None follows the sparsity asked for."""
    tied: tuple[str, ...] = ()
    """Other names of the same weight."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the weight."""
        return (self.name, *self.tied)

    @property
    def weights(self) -> int:
        """How many weights it has."""
        return prod(self.shape)

    @property
    def groups(self) -> int | None:
        """How many groups the layer has, if its output units lie in dimension 1; else None."""
        return self.layout.groups

    @property
    def size(self) -> LayerSize:
        """What decides how many zeros it gets."""
        return LayerSize(self.weights, self.sparsity)

    def rows(self, weight: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """A view of `weight` (of this entry's shape) by rows, and the dimensions that make up one row."""
        return self.layout.rows(weight)
