"""Where the rows of a weight lie. A row is one output unit (a filter): all the weights that make one output."""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from pof.errors import PofError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RowLayout:
    """Rows lie in dimension 0, unless one of the fields says otherwise; at most one of them is set."""

    groups: int | None = None
    """Rows lie in dimension 1, within so many groups (transposed convolutions, GPT-2's Conv1D)."""
    matrix: int | None = None
    """The weight is so many rows, one after the other (experts as (experts, out, in), conditional convolutions)."""
    last: bool = False
    """Rows lie in dimension 0 and in the last one (experts as (experts, in, out))."""

    @property
    def is_plain(self) -> bool:
        """Whether each index of dimension 0 is a row."""
        return self == PLAIN

    def rows(self, weight: "Tensor") -> "tuple[Tensor, tuple[int, ...]]":
        """A view of `weight` by rows, and the dimensions that make up one row."""
        if self.matrix is not None:
            return weight.view(self.matrix, -1), (1,)
        if self.last:
            return weight, tuple(range(1, weight.dim() - 1))
        if self.groups is None:
            return weight, tuple(range(1, weight.dim()))
        view = weight.unflatten(0, (self.groups, -1))
        return view, (1, *range(3, view.dim()))

    def norms_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one number per row of a weight of this `shape`: size 1 in each dimension of a row."""
        if self.matrix is not None:
            return (self.matrix, 1)
        if self.last:
            return (shape[0], *[1] * (len(shape) - 2), shape[-1])
        if self.groups is None:
            return (shape[0], *[1] * (len(shape) - 1))
        return (self.groups, 1, shape[1], *[1] * (len(shape) - 2))

    def count(self, shape: tuple[int, ...]) -> int:
        """How many rows a weight of this `shape` has."""
        return prod(self.norms_shape(shape))

    def stored(self) -> int | list[Any] | None:
        """The layout as a `.pof` file has it: see SPEC.md."""
        if self.matrix is not None:
            return ["matrix", self.matrix]
        return ["last"] if self.last else self.groups

    @classmethod
    def from_stored(cls, stored: Any, shape: tuple[int, ...]) -> "RowLayout":
        """The layout that `stored` stands for.

        Raises:
            PofError: it is none, or does not fit a weight of this `shape`.
        """
        if stored is None:
            return PLAIN
        if stored == ["last"] and len(shape) >= 2:
            return cls(last=True)
        if isinstance(stored, list) and len(stored) == 2 and stored[0] == "matrix":
            rows = stored[1]
            if type(rows) is int and rows > 0 and prod(shape) % rows == 0:
                return cls(matrix=rows)
        elif type(stored) is int and stored > 0 and len(shape) >= 2 and shape[0] % stored == 0:
            return cls(groups=stored)
        raise PofError(f"rows laid out as {stored!r} do not fit the shape {shape}")


PLAIN = RowLayout()
