"""The normalisation layers of a file, the stream of their statistics, and states between the stored ones.

This needs only numpy. `stored_statistics` turns the content of the stream into statistics. See SPEC.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pof.errors import PofFileError
from pof.file.streams import Bytes
from pof.ranking.sparsity_state import DENSE, State

MEAN, VARIANCE = ".running_mean", ".running_var"
Differences = NDArray[np.int16]
"""The differences of a state's statistics from the dense ones, in steps, as they are stored."""
RealDifferences = NDArray[np.float64]
"""The same differences as real numbers: means in dense standard deviations, variances in doublings."""


class Norm(NamedTuple):
    """The names of the two tensors of a normalisation layer."""

    mean: str
    variance: str


def norms_of(shapes: Mapping[str, Sequence[int]]) -> list[Norm]:
    """The normalisation layers among the tensors with these names and shapes, in their order."""
    means = [name for name in shapes if f".{name}".endswith(MEAN)]
    pairs = [Norm(name, name[: len(name) - len(MEAN) + 1] + VARIANCE[1:]) for name in means]
    return [p for p in pairs if p.variance in shapes and tuple(shapes[p.variance]) == tuple(shapes[p.mean])]


def encode(states: Sequence[tuple[State, Differences]]) -> Bytes:
    """The statistics stream of one chunk."""
    parts, before = [], None
    for state, steps in states:
        pair = np.ascontiguousarray(steps).view(np.uint8).reshape(-1, 2)
        low = pair[:, 0] if before is None else pair[:, 0] - before
        before = pair[:, 0]
        parts += [np.array(state, np.float64).view(np.uint8), low, pair[:, 1]]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def decode(data: Bytes, channels: int) -> dict[State, Differences]:
    """The inverse of `encode`, for `channels` differences per state."""
    size = 16 + 2 * channels
    if len(data) % size:
        raise PofFileError("the statistics have a wrong length")
    found, before = {}, None
    for row in data.reshape(-1, size):
        sparsity, recover_from = (float(end) for end in row[:16].copy().view(np.float64))
        if not 0.0 <= recover_from <= sparsity < 1.0:
            raise PofFileError("the statistics are for a state that cannot exist")
        low = row[16 : 16 + channels] if before is None else row[16 : 16 + channels] + before
        before = low
        pair = np.stack([low, row[16 + channels :]], axis=1)
        found[State(sparsity, recover_from)] = np.ascontiguousarray(pair).view(np.int16).reshape(-1)
    return found


def between(known: Mapping[State, RealDifferences], state: State) -> RealDifferences | None:
    """The differences for `state`: its own, or interpolated between its neighbours; None if there are none.

    Pruned states form a line over the sparsity, and so do the bands that start at one ratio. A band that starts at
    another ratio lies between two such lines.
    """
    if state == DENSE:
        return None
    if state in known:
        return known[state]
    lines = _lines(known)
    if state.is_pruned:
        return _on_line(lines[None], state.sparsity) if len(lines[None]) > 1 else None
    ratios = [ratio for ratio in lines if ratio is not None and ratio < state.sparsity]
    below = max((ratio for ratio in ratios if ratio <= state.recover_from), default=None)
    above = min((ratio for ratio in ratios if ratio >= state.recover_from), default=None)
    if below is None or above is None:
        nearest = above if below is None else below
        return None if nearest is None else _on_line(lines[nearest], state.sparsity)
    ends = _on_line(lines[below], state.sparsity), _on_line(lines[above], state.sparsity)
    return _mixed(*ends, 0.0 if above == below else (state.recover_from - below) / (above - below))


def _lines(known: Mapping[State, RealDifferences]) -> dict[float | None, dict[float, RealDifferences]]:
    """The known differences by sparsity: those of pruned states under None, those of bands under their first ratio."""
    pruned: dict[float, RealDifferences] = {s.sparsity: steps for s, steps in known.items() if s.is_pruned}
    if known:
        pruned[0.0] = np.zeros(len(next(iter(known.values()))))
    lines: dict[float | None, dict[float, RealDifferences]] = {None: pruned}
    for band, steps in known.items():
        if not band.is_pruned:
            # A band of zero width is a pruned state.
            line = lines.setdefault(band.recover_from, {band.recover_from: _on_line(pruned, band.recover_from)})
            line[band.sparsity] = steps
    return lines


def _on_line(line: Mapping[float, RealDifferences], sparsity: float) -> RealDifferences:
    """Interpolate between the two neighbours; beyond the last one, use it unchanged."""
    below = max(known for known in line if known <= sparsity)
    above = min((known for known in line if known >= sparsity), default=below)
    return _mixed(line[below], line[above], 0.0 if above == below else (sparsity - below) / (above - below))


def _mixed(one: RealDifferences, other: RealDifferences, share: float) -> RealDifferences:
    return (1.0 - share) * one + share * other
