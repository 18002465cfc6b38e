"""One parameter of a live model: a dense copy is kept and ranked, and any state can be written into it."""

import torch
from torch import nn

from pof.elastic.change_detector import CHANGED, ChangeDetector
from pof.errors import WeightsChangedError
from pof.planning.entry import Entry
from pof.ranking.magnitude_bits import count_zeros
from pof.ranking.ranked_weight import Counts, RankedWeight
from pof.ranking.sparsity_state import Magnitudes

REFRESH = "elastic.refresh() takes the present model as the dense one"


class LiveWeight:
    """A parameter, the ranking of its dense values, and the state that was last written into it."""

    def __init__(self, entry: Entry, parameter: nn.Parameter, magnitudes: Magnitudes) -> None:
        self.entry = entry
        self.parameter = parameter
        self.counts: Counts = (0, 0)
        """How many weights were last written as zero, and how many as zero or in the band."""
        self.alpha = 0.0
        """The magnitude that fills the band; 0 if there is no band. On the sphere it is that of unit rows."""
        self._magnitudes = magnitudes
        self._ranked: RankedWeight | None = None
        self._detector = ChangeDetector(parameter)
        self._detector.remember_all()

    @property
    def nbytes(self) -> int:
        """How many bytes of memory are held besides the dense copy."""
        return 0 if self._ranked is None else self._ranked.nbytes

    @property
    def has_copy(self) -> bool:
        """Whether the dense weights have been copied."""
        return self._ranked is not None

    @property
    def zeros(self) -> int:
        """How many weights are zero, counted now."""
        return count_zeros(self.parameter.detach())

    @property
    def dead_rows(self) -> int:
        """How many rows have no weights left now, counted."""
        rows, dims = self.entry.rows(self.parameter.detach())
        return count_zeros(torch.any(rows != 0, dim=dims)) if dims else count_zeros(rows)

    def change(self) -> str | None:
        """What other code has done to the parameter since it was last written; None if nothing."""
        what = self._detector.change()
        if what == CHANGED and self._is_as_written():
            # Written and put back, as `pof.pruned` does.
            self._detector.accept()
            return None
        return what

    def ranked(self) -> RankedWeight:
        """The dense weights and their ranking; the first call copies them."""
        if self._ranked is None:
            dense = self.parameter.detach().clone()
            self._ranked = RankedWeight(dense, self.entry.layout, self._magnitudes, name=self.entry.name)
            self._detector.look_at_largest()
        return self._ranked

    def prepare(self, counts: Counts) -> None:
        """Do the parts of `write(counts)` that can fail: copy the dense weights and find the cuts."""
        for count in counts:
            self.ranked().cut(count)

    def write(self, counts: Counts) -> None:
        """Zero the smallest `counts[0]` weights, and fill the band up to `counts[1]`."""
        self.alpha = self.ranked().write(counts, self.parameter.detach())
        self.counts = counts
        self._detector.accept()

    def refuse_unwritable(self, live: nn.Parameter) -> None:
        """Raise if the dense weights cannot be written to `live`, the parameter that the model now has."""
        if live.shape != self.entry.shape or live.is_meta:
            raise WeightsChangedError(f"weight {self.entry.name!r} has no values or another shape now: {REFRESH}")
        if self._ranked is None and (live is not self.parameter or self.change() is not None):
            raise WeightsChangedError(
                f"weight {self.entry.name!r} changed before the model first left the dense state, so there is no copy "
                f"to go back to: {REFRESH}"
            )

    @torch.no_grad()
    def force_dense(self, live: nn.Parameter) -> None:
        """Write the dense weights to `live`, even if it was moved, converted, trained or replaced."""
        if self._ranked is not None:
            live.copy_(self._ranked.values)

    def _is_as_written(self) -> bool:
        if self._ranked is None:
            return self._detector.same_values()
        if self.parameter.shape != self._ranked.values.shape:
            return False
        expected = torch.empty_like(self._ranked.values)
        self._ranked.write(self.counts, expected)
        return torch.equal(expected, self.parameter)
