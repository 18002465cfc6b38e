"""One weight that can be put into any state and back: its dense copy, its ranking, its cuts."""

import math

import torch
from torch import Tensor, nn

from pof.errors import PofError
from pof.ladder import Ladder
from pof.magnitude import Cut, find_cut, zero_smallest
from pof.planning import Entry
from pof.recovery import band_alpha, fill_band, split_band
from pof.rows import rescale_rows, row_norms, unit_rows
from pof.states import Magnitudes

CHANGED = "changed"
SAMPLES = 64
"""Values a weight that are compared to notice a change which torch did not count (one made through `.data`)."""


class ElasticWeight:
    """A live parameter and what is needed to write any state into it."""

    def __init__(
        self, entry: Entry, parameter: nn.Parameter, magnitudes: Magnitudes, *, many_states: bool = True
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
        self._mark = _mark(parameter)

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
        now = _mark(self.parameter)
        what = _difference(self._mark, now)
        if what == CHANGED and self._dense is not None and torch.equal(self._expected(), self.parameter):
            # Written and put back, as `pof.pruned` does.
            self._mark, what = now, None
        return what

    def dense(self) -> Tensor:
        """The dense weights; the first call copies them."""
        if self._dense is None:
            dense = self.parameter.detach().clone()
            if not bool(torch.isfinite(dense).all()):
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
        live = self.parameter.detach()
        if self._norms is None and 0 < counts[0] == counts[1]:
            zero_smallest(self.dense(), self._cut(counts[1]), out=live)
        else:
            live.copy_(self._values(counts))
        self.counts = counts
        self._mark = _mark(self.parameter)

    @torch.no_grad()
    def _expected(self) -> Tensor:
        return self._values(self.counts)

    def _values(self, counts: tuple[int, int]) -> Tensor:
        """The weights with `counts[0]` zeros and a band up to `counts[1]`."""
        dense = self.dense()
        if counts == (0, 0):
            return dense
        high = self._cut(counts[1])
        low = high if counts[0] == counts[1] else self._cut(counts[0])
        kept, band = split_band(self.keys(), low, high)
        alpha = self._alpha(counts, band) if counts[0] < counts[1] else 0.0
        if self._norms is None:
            return fill_band(kept, band, alpha)
        # Taken from the dense weights, so that a row which loses nothing keeps its bits.
        rows, dims = self.entry.rows(torch.where(kept != 0, dense, 0.0))
        if alpha:
            rows = fill_band(rows, self.entry.rows(band)[0], alpha * self._norms).to(dense.dtype)
        return rescale_rows(rows, dims, self._norms, torch.float64).reshape(dense.shape)

    def _cut(self, count: int) -> Cut:
        return find_cut(self.keys(), count) if self._ladder is None else self._ladder.cut(count)

    def _alpha(self, counts: tuple[int, int], band: Tensor) -> float:
        if counts not in self._alphas:
            self._alphas[counts] = band_alpha(band)
        return self._alphas[counts]


_Mark = tuple[object, object, object, object, Tensor]


def _mark(parameter: Tensor) -> _Mark:
    """What tells whether a parameter is as it was: where it is, torch's count of its changes, and a few values."""
    live = parameter.detach()
    version = None if live.is_inference() else live._version
    flat = live.view(-1) if live.is_contiguous() else live.reshape(-1) if not _is_dense(live) else _in_memory(live)
    samples = flat[:: max(1, flat.numel() // SAMPLES)].clone()
    return live.device, live.dtype, live.data_ptr(), version, samples


def _difference(then: _Mark, now: _Mark) -> str | None:
    if then[0] != now[0]:
        return f"moved from {then[0]} to {now[0]}"
    if then[1] != now[1]:
        return f"changed from {then[1]} to {now[1]}"
    return None if then[2:4] == now[2:4] and torch.equal(then[4], now[4]) else CHANGED


def _is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill their memory without gaps, in whatever order."""
    span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return span + 1 == tensor.numel()


def _in_memory(tensor: Tensor) -> Tensor:
    return tensor.as_strided((tensor.numel(),), (1,))
