"""The table of a live model's layers in their present state."""

from dataclasses import dataclass

from pof.terminal.text_table import text_table


@dataclass(frozen=True)
class LayerRow:
    """One weight tensor in its present state."""

    name: str
    weights: int
    zeros: int
    band: int
    """How many weights are in the band, filled with alpha * sign(w)."""
    alpha: float
    dead_rows: int = 0
    """How many rows have no weights left: their outputs are the same for every input."""


class LayerRows(list[LayerRow]):
    """The rows of `Elastic.layers()`; prints as a table."""

    def __str__(self) -> str:
        rows = [(r.name, r.weights, r.zeros, r.zeros / r.weights, r.band, r.alpha, r.dead_rows) for r in self]
        return text_table(("weight", "weights", "zeros", "sparsity", "band", "alpha", "dead rows"), rows)

    __repr__ = __str__
