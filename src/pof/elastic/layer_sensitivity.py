"""Which layers suffer most from pruning, and how to share zeros among them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from pof.errors import PofError
from pof.ranking.sparsity import check_sparsity
from pof.terminal.text_table import text_table

SPARSITIES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
Point = tuple[float, float]
"""A number of zeros, and how much of the score they cost."""


def score_of(evaluate: Callable[[nn.Module], float], model: nn.Module) -> float:
    """The score that `evaluate` returns, as a float."""
    found: Any = evaluate(model)
    try:
        score = float(found.detach() if isinstance(found, torch.Tensor) else found)
    except (TypeError, ValueError, RuntimeError):
        raise PofError(f"evaluate gave {found!r}: let it return a number, the higher the better") from None
    if not math.isfinite(score):
        raise PofError(f"evaluate gave {score}: let it return a number, the higher the better")
    return score


@dataclass(frozen=True)
class LayerScores:
    """The scores of the model when one weight tensor alone is pruned, one per sparsity."""

    name: str
    scores: tuple[float, ...]


@dataclass(frozen=True)
class Sensitivity:
    """How the score falls when each weight tensor is pruned alone; prints as a table."""

    dense: float
    sparsities: tuple[float, ...]
    rows: tuple[LayerScores, ...]
    weights: Mapping[str, int]
    """How many weights each tensor has, by name."""

    def __str__(self) -> str:
        header = ("weight", "weights", *(f"{sparsity:g}" for sparsity in self.sparsities))
        rows = [(row.name, self.weights[row.name], *(f"{score:.4f}" for score in row.scores)) for row in self.rows]
        return f"{text_table(header, rows)}\ndense: {self.dense:.4f}"

    def allocate(self, sparsity: float) -> dict[str, float]:
        """Sparsities by name (as a glob) that give `sparsity` overall and cost the least.

        The cost of pruning several tensors is taken to be the sum of what each costs alone. Each cost curve is replaced
        by the largest convex curve below it, so that the next zeros always go where each of them costs least.
        """
        total = sum(self.weights.values())
        most = max(self.sparsities)
        check_sparsity(sparsity)
        if sparsity > most:
            raise PofError(f"sparsity={sparsity!r} must be in [0, {most:g}], the largest that was tried")
        curves = {row.name: self._curve(row) for row in self.rows}
        slopes = sorted(
            ((cost - before) / (zeros - already), name, zeros - already)
            for name, curve in curves.items()
            for (already, before), (zeros, cost) in pairwise(curve)
        )
        left, given = sparsity * total, dict.fromkeys(curves, 0.0)
        for _, name, zeros in slopes:
            taken = min(zeros, left)
            given[name] += taken
            left -= taken
        return {escape(name): zeros / self.weights[name] for name, zeros in given.items()}

    def _curve(self, row: LayerScores) -> list[Point]:
        """The corners of the convex curve below this tensor's cost curve, starting from no zeros."""
        size = self.weights[row.name]
        found = zip(self.sparsities, row.scores, strict=True)
        points = sorted((s * size, self.dense - score) for s, score in found)
        return _convex([(0.0, 0.0), *(point for point in points if point[0] > 0)])


def _convex(points: Sequence[Point]) -> list[Point]:
    """The lower convex hull of points sorted by their first coordinate."""
    hull: list[Point] = []
    for point in points:
        while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _slope(one: Point, other: Point) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])
