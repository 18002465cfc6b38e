"""One weight and its ranking: where it is cut at any count, and what it becomes in any state."""

import math
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pof.errors import PofError
from pof.ranking.cuts import Cut, find_cut, keep_mask, zero_smallest
from pof.ranking.magnitude_bits import all_finite
from pof.ranking.recovery import find_alpha, recover
from pof.ranking.row_layout import RowLayout
from pof.ranking.row_norms import row_norms, unit_rows
from pof.ranking.sorted_magnitudes import SortedMagnitudes
from pof.ranking.sparsity_state import Magnitudes
from pof.ranking.sphere_recovery import find_alpha_on_sphere, recover_on_sphere

REMEMBERED = 256
"""How many cuts, alphas or counts are kept at most, so that a long sweep does not fill the memory."""

Counts = tuple[int, int]
"""How many weights are zero, and how many are zero or in the band."""
Key = TypeVar("Key")
Value = TypeVar("Value")


def remember(memory: dict[Key, Value], key: Key, value: Value) -> Value:
    """Put `value` into `memory`, which is emptied when it is full."""
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = value
    return value


class RankedWeight:
    """A weight tensor and the ranking of its values. It never changes `values`, and nothing else may either.

    Args:
        values: the dense weight.
        layout: where its rows lie.
        magnitudes: "raw" ranks the weights as they are; "unit" ranks unit-norm rows and gives each row its norm back.
        name: the name of the weight, for errors.
        many_states: spend time and memory once, so that each further state is quick.
        norms: the norms of the full rows, if `values` lacks some of the weights (a part of a file).

    Raises:
        PofError: a value is NaN or infinite, or the norm of a row is too large for float32.
    """

    def __init__(
        self,
        values: Tensor,
        layout: RowLayout,
        magnitudes: Magnitudes = "raw",
        *,
        name: str = "",
        many_states: bool = True,
        norms: Tensor | None = None,
    ) -> None:
        if not all_finite(values):
            raise PofError(f"weight {name!r} holds NaN or inf: load finite weights first")
        self.values, self.layout = values, layout
        self.norms: Tensor | None = None
        """The norms of the rows, in a shape that broadcasts over them, if unit rows are ranked; else None."""
        if magnitudes == "unit":
            rows, dims = layout.rows(values)
            self.norms = row_norms(rows, dims, torch.float64) if norms is None else norms
            if not bool(torch.isfinite(self.norms).all()):
                raise PofError(f"weight {name!r} has rows too long for float32: use magnitudes='raw'")
        # Sorting pays off when many states follow; for a single one a search is quicker.
        self._sorted = SortedMagnitudes(zeros_alike=magnitudes == "raw") if many_states else None
        self._cuts: dict[int, Cut] = {}
        self._alphas: dict[Counts, float] = {}

    @property
    def size(self) -> int:
        """How many weights there are."""
        return self.values.numel()

    @property
    def nbytes(self) -> int:
        """How many bytes of memory are held besides the values."""
        return sum(part.nbytes for part in (self._sorted, self.norms) if part is not None)

    def keys(self) -> Tensor:
        """The values that are ranked, in the shape of the weight: the weights themselves, or those of the unit rows."""
        if self.norms is None:
            return self.values
        return unit_rows(self.layout.rows(self.values)[0], self.norms).reshape(self.values.shape)

    def keys_across(self) -> Tensor:
        """The keys for comparison with those of other weights: unit rows are scaled to a root mean square of one."""
        keys = self.keys()
        return keys if self.norms is None else keys * math.sqrt(self.size / self.norms.numel())

    def ordered_magnitudes(self) -> NDArray[Any]:
        """The magnitudes of all keys, smallest first, as float64."""
        return np.sort(self.keys().abs().reshape(-1).cpu().double().numpy())

    def cut(self, count: int) -> Cut:
        """The cut that prunes the `count` smallest weights."""
        if count in self._cuts:
            return self._cuts[count]
        cut = find_cut(self.keys(), count) if self._sorted is None else self._sorted.cut(count, self.keys)
        return remember(self._cuts, count, cut)

    def kept(self, count: int) -> Tensor:
        """The mask that is True where a weight is kept when the `count` smallest are pruned."""
        return keep_mask(self.keys(), self.cut(count))

    def alpha(self, counts: Counts) -> float:
        """The magnitude that fills the band between the two counts. On the sphere it is that of unit rows."""
        if counts not in self._alphas:
            low, high = map(self.cut, counts)
            if self.norms is not None:
                found = find_alpha_on_sphere(self.values, self.norms, self.layout, low, high)
            else:
                found = find_alpha(self.values, low, high)
            remember(self._alphas, counts, found)
        return self._alphas[counts]

    @torch.no_grad()
    def write(self, counts: Counts, out: Tensor) -> float:
        """Write the weight with `counts[0]` zeros and a band up to `counts[1]` to `out`; return its alpha.

        Alpha is 0 if there is no band.
        """
        if counts == (0, 0):
            out.copy_(self.values)
            return 0.0
        low, high = map(self.cut, counts)
        if self.norms is not None:
            return recover_on_sphere(self.values, self.norms, self.layout, low, high, out, self.alpha(counts))
        if counts[0] == counts[1]:
            zero_smallest(self.values, high, out=out)
            return 0.0
        return recover(self.values, low, high, out, self.alpha(counts))
