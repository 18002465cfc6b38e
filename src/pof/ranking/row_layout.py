"""Where the rows of a weight lie. A row is one output unit (a filter): all the weights that compute one output."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RowLayout:
    """Rows lie in dimension 0, or in dimension 1 within `groups` (transposed convolutions, GPT-2's Conv1D)."""

    groups: int | None = None
    """How many groups the layer has, if its output units lie in dimension 1; None if they lie in dimension 0."""

    def rows(self, weight: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """A view of `weight` by rows, and the dimensions that make up one row."""
        if self.groups is None:
            return weight, tuple(range(1, weight.dim()))
        view = weight.unflatten(0, (self.groups, -1))
        return view, (1, *range(3, view.dim()))

    def norms_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one number per row, for a weight of this `shape`: size 1 in each dimension of a row."""
        if self.groups is None:
            return (shape[0], *[1] * (len(shape) - 1))
        return (self.groups, 1, shape[1], *[1] * (len(shape) - 2))
