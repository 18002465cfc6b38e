"""One weight that can be put into any state and back: its dense copy, its ranking, its cuts."""

import math

import torch
from torch import Tensor, nn

from pof.errors import PofError
from pof.ladder import Ladder
from pof.magnitude import Cut, find_cut, zero_smallest
from pof.planning import Entry
from pof.recovery import band_alpha, fill_band, recover, split_band
from pof.rows import rescale_rows, row_norms, unit_rows
from pof.states import Magnitudes
from pof.watch import CHANGED, Watch


class ElasticWeight:
    """A live parameter and what is needed to write any state into it."""

    def __init__(
        self,
        entry: Entry,
        parameter: nn.Parameter,
        magnitudes: Magnitudes,
        *,
        many_states: bool = True,
    ) -> None:
        self.entry = entry
        self.parameter = parameter
        self.counts = (0, 0)
        """How many weights are zero, and how many are zero or in the band, as last written."""
        self._magnitudes = magnitudes
        self._dense: Tensor | None = None
        self._norms: Tensor | None = None
        # Sorting pays when many states follow; for a single one a search is quicker.
        self._ladder = Ladder(self.keys) if many_states else None
        self._alphas: dict[tuple[int, int], float] = {}
        self._watch = Watch(parameter)

    @property
    def alpha(self) -> float:
        """What the band is filled with; 0 where there is none. On the sphere it is that of unit rows."""
        return self._alphas.get(self.counts, 0.0)

    @property
    def nbytes(self) -> int:
        """Memory held beside the dense copy."""
        return sum(part.nbytes for part in (self._ladder, self._norms) if part is not None)

    @property
    def has_copy(self) -> bool:
        """Whether the dense weights were copied."""
        return self._dense is not None

    def change(self) -> str | None:
        """What somebody else did to the parameter since it was last written; None if nothing."""
        what = self._watch.change()
        if what == CHANGED and self.has_copy and self._is_as_written():
            # Written and put back, as `pof.pruned` does.
            self._watch.accept()
            what = None
        return what

    def dense(self) -> Tensor:
        """The dense weights; the first call copies them."""
        if self._dense is None:
            dense = self.parameter.detach().clone()
            if not bool(torch.isfinite(torch.linalg.vector_norm(dense, ord=torch.inf))):
                raise PofError(f"weight {self.entry.name!r} holds NaN or inf: load finite weights first")
            if self._magnitudes == "unit":
                rows, dims = self.entry.rows(dense)
                self._norms = row_norms(rows, dims, torch.float64)
            self._dense = dense
        return self._dense

    def keys(self) -> Tensor:
        """What is ranked, in the shape of the weight: the weights, or those of the unit rows."""
        dense = self.dense()
        if self._norms is None:
            return dense
        return unit_rows(self.entry.rows(dense)[0], self._norms).reshape(dense.shape)

    def keys_across(self) -> Tensor:
        """Keys to compare with those of other weights: unit rows are scaled to a root mean square of one."""
        keys = self.keys()
        if self._norms is None:
            return keys
        return keys * math.sqrt(keys.numel() / self._norms.numel())

    def prepare(self, counts: tuple[int, int]) -> None:
        """Find the cuts of `counts`, so that `write` cannot fail."""
        for count in counts:
            self._cut(count)

    @torch.no_grad()
    def write(self, counts: tuple[int, int]) -> None:
        """Zero the smallest `counts[0]` weights, and fill the band up to `counts[1]`."""
        self._put(counts, self.parameter.detach())
        self.counts = counts
        self._watch.accept()

    def _put(self, counts: tuple[int, int], out: Tensor) -> None:
        """Write the weights with `counts[0]` zeros and a band up to `counts[1]` into `out`."""
        dense = self.dense()
        if counts == (0, 0):
            out.copy_(dense)
        elif self._norms is not None:
            self._put_on_sphere(counts, self._norms, out)
        elif counts[0] == counts[1]:
            zero_smallest(dense, self._cut(counts[1]), out=out)
        else:
            low, high = map(self._cut, counts)
            self._alphas[counts] = recover(dense, low, high, out, self._alphas.get(counts))

    def _put_on_sphere(self, counts: tuple[int, int], norms: Tensor, out: Tensor) -> None:
        """Ranked by unit rows, and each row brought back to its norm."""
        high = self._cut(counts[1])
        low = high if counts[0] == counts[1] else self._cut(counts[0])
        kept, band = split_band(self.keys(), low, high)
        # Taken from the dense weights, so that a row which loses nothing keeps its bits.
        torch.mul(self.dense(), kept.sign_().abs_(), out=out).add_(0.0)
        rows, dims = self.entry.rows(out)
        if counts[0] < counts[1]:
            alpha = self._alphas[counts] = band_alpha([band])
            fill_band(rows, self.entry.rows(band)[0], alpha * norms)
        rescale_rows(rows, dims, norms, torch.float64)

    def _is_as_written(self) -> bool:
        expected = torch.empty_like(self.parameter)
        with torch.no_grad():
            self._put(self.counts, expected)
        return torch.equal(expected, self.parameter)

    def _cut(self, count: int) -> Cut:
        return find_cut(self.keys(), count) if self._ladder is None else self._ladder.cut(count)
