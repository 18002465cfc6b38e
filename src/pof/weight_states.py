"""One weight that can be put into any state and back: its dense copy, its ranking, its cuts."""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from pof.errors import PofError, WeightsChangedError
from pof.ladder import Ladder
from pof.magnitude import Cut, all_finite, find_cut, zero_smallest
from pof.on_sphere import find_alpha_on_sphere, recover_on_sphere
from pof.planning import Entry
from pof.recovery import find_alpha, recover
from pof.rows import row_norms, unit_rows
from pof.states import Magnitudes
from pof.watch import CHANGED, Watch

REMEMBERED = 256
"""How many states' cuts, alphas and counts are kept, so that a long sweep does not fill the memory."""

Key = TypeVar("Key")
Value = TypeVar("Value")


def remember(memory: dict[Key, Value], key: Key, value: Value) -> Value:
    """Put `value` into `memory`, which is emptied when it is full."""
    if len(memory) >= REMEMBERED:
        memory.clear()
    memory[key] = value
    return value


class ElasticWeight:
    """A live parameter and what is needed to write any state into it."""

    def __init__(
        self,
        entry: Entry,
        parameter: nn.Parameter,
        magnitudes: Magnitudes,
        *,
        many_states: bool = True,
        norms: Tensor | None = None,
    ) -> None:
        """`norms` are the rows' norms where the parameter has not all of its weights (a part of a file)."""
        self.entry = entry
        self.parameter = parameter
        self.counts = (0, 0)
        """How many weights are zero, and how many are zero or in the band, as last written."""
        self.alpha = 0.0
        """What the band is filled with; 0 where there is none. On the sphere it is that of unit rows."""
        self._magnitudes = magnitudes
        self._dense: Tensor | None = None
        self._given_norms = norms
        self._norms: Tensor | None = None
        # Sorting pays when many states follow; for a single one a search is quicker.
        self._ladder = Ladder(zeros_alike=magnitudes == "raw") if many_states else None
        self._cuts: dict[int, Cut] = {}
        self._alphas: dict[tuple[int, int], float] = {}
        self._watch = Watch(parameter)

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
        if what == CHANGED and self._is_as_written():
            # Written and put back, as `pof.pruned` does.
            self._watch.accept()
            return None
        return what

    def dense(self) -> Tensor:
        """The dense weights; the first call copies them."""
        if self._dense is None:
            dense = self.parameter.detach().clone()
            if not all_finite(dense):
                raise PofError(f"weight {self.entry.name!r} holds NaN or inf: load finite weights first")
            if self._magnitudes == "unit":
                rows, dims = self.entry.rows(dense)
                self._norms = row_norms(rows, dims, torch.float64) if self._given_norms is None else self._given_norms
                if not bool(torch.isfinite(self._norms).all()):
                    raise PofError(f"weight {self.entry.name!r} has rows too long for float32: use magnitudes='raw'")
            self._dense = dense
            self._watch.look_at_largest()
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
        return keys if self._norms is None else keys * math.sqrt(keys.numel() / self._norms.numel())

    @property
    def norms(self) -> Tensor | None:
        """The rows' norms once `dense` was called, if unit rows are ranked."""
        return self._norms

    def alpha_of(self, counts: tuple[int, int]) -> float:
        """What the band between the two counts would be filled with."""
        dense, (low, high) = self.dense(), map(self.cut, counts)
        if self._norms is not None:
            return find_alpha_on_sphere(dense, self._norms, self.entry, low, high)
        return find_alpha(dense, low, high)

    def prepare(self, counts: tuple[int, int]) -> None:
        """Do what can fail before `write(counts)`: copy the dense weights and find the cuts."""
        self.dense()
        for count in counts:
            self.cut(count)

    @torch.no_grad()
    def write(self, counts: tuple[int, int]) -> None:
        """Zero the smallest `counts[0]` weights, and fill the band up to `counts[1]`."""
        self.alpha = self._put(counts, self.parameter.detach())
        self.counts = counts
        self._watch.accept()

    def refuse_unwritable(self, live: nn.Parameter) -> None:
        """Raise if the dense weights cannot be written to `live`, the parameter that the model has now."""
        if live.shape != self.entry.shape or live.is_meta:
            raise WeightsChangedError(
                f"weight {self.entry.name!r} has no values or another shape now: elastic.refresh() takes the present "
                "model as the dense one"
            )
        if self._dense is None and (live is not self.parameter or self.change() is not None):
            raise WeightsChangedError(
                f"weight {self.entry.name!r} changed before the model first left the dense state, so there is no copy "
                "to go back to: elastic.refresh() takes the present model as the dense one"
            )

    @torch.no_grad()
    def force_dense(self, live: nn.Parameter) -> None:
        """Write the dense weights to `live`, whatever it has become (moved, converted, trained, replaced)."""
        if self._dense is not None:
            live.copy_(self._dense)

    def _put(self, counts: tuple[int, int], out: Tensor) -> float:
        """Write the weights with `counts[0]` zeros and a band up to `counts[1]` into `out`; return alpha."""
        if counts == (0, 0):
            out.copy_(self.dense())
            return 0.0
        low, high = map(self.cut, counts)
        alpha = self._alphas.get(counts)
        if self._norms is not None:
            alpha = recover_on_sphere(self.dense(), self._norms, self.entry, low, high, out, alpha)
        elif counts[0] == counts[1]:
            zero_smallest(self.dense(), high, out=out)
            return 0.0
        else:
            alpha = recover(self.dense(), low, high, out, alpha)
        return remember(self._alphas, counts, alpha)

    def _is_as_written(self) -> bool:
        if self._dense is None:
            return self._watch.same_sum()
        if self.parameter.shape != self._dense.shape:
            return False
        expected = torch.empty_like(self._dense)
        with torch.no_grad():
            self._put(self.counts, expected)
        return torch.equal(expected, self.parameter)

    def cut(self, count: int) -> Cut:
        """The cut that prunes the `count` smallest."""
        if count in self._cuts:
            return self._cuts[count]
        cut = find_cut(self.keys(), count) if self._ladder is None else self._ladder.cut(count, self.keys)
        return remember(self._cuts, count, cut)
