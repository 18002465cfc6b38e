"""What there is to show of a network, as plain facts: its weights, the stages of its file, its speed."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pof.elastic import Elastic
from pof.file import PofFile, save
from pof.planning import Entry, plan
from pof.rows import row_norms, unit_rows
from pof.runtime import CompiledModel
from pof.states import Magnitudes

BINS = 80
POINTS = 201
"""Of the tables over the share of weights."""
FASTER_AT = 0.9
ALL = "all layers, ranked together"
Facts = dict[str, Any]


def described(model: nn.Module, magnitudes: Magnitudes, file: str | Path | None = None) -> Facts:
    """The weights of a model, and the stages of its file (of the file that it would have, if there is none)."""
    chosen = plan(model)
    weights = chosen.parameters(model)
    ranked = {entry.name: _ranked(entry, weights[entry.name].detach(), magnitudes) for entry in chosen}
    together = np.concatenate(list(ranked.values()))
    with tempfile.TemporaryDirectory() as folder:
        if file is None:
            file = Path(folder) / "model.pof"
            save(model, file, magnitudes=magnitudes)
        stages = [
            {"kind": s.kind, "gives": str(s.state or "-"), "cumulative": s.cumulative} for s in PofFile(file).stages
        ]
    return {
        "layers": [*(_layer(name, values) for name, values in ranked.items()), _layer(ALL, together)],
        "stages": stages,
        "dense_bytes": sum(4 * value.numel() for value in model.state_dict().values()),
    }


def times_of(model: nn.Module, example: Tensor, magnitudes: Magnitudes, sparsity: float = FASTER_AT) -> Facts:
    """How fast each layer of a pruned model is in `pof.compile`, on one thread; the model is dense again afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with Elastic(model, magnitudes=magnitudes).at(sparsity):
            fast = CompiledModel(model, example, threads=1)
            layers = [asdict(each) for each in fast.times()]
            plain, compiled = fast.milliseconds()
    finally:
        torch.set_num_threads(before)
    return {"sparsity": sparsity, "batch": len(example), "layers": layers, "plain": plain, "compiled": compiled}


def _ranked(entry: Entry, weight: Tensor, magnitudes: Magnitudes) -> NDArray[np.float32]:
    """The weights as they are ranked: with unit rows, if so."""
    rows, dims = entry.rows(weight.float())
    if magnitudes == "unit":
        rows = unit_rows(rows, row_norms(rows, dims, torch.float64))
    flat: NDArray[np.float32] = rows.reshape(-1).cpu().numpy()
    return flat


def _layer(name: str, values: NDArray[np.float32]) -> Facts:
    """How the weights of a layer are distributed: a histogram, and thresholds and sums by share."""
    magnitudes = np.sort(np.abs(values)).astype(np.float64)
    # Beyond the edge there are so few that one would not see the others.
    edge = float(magnitudes[int(0.999 * (len(magnitudes) - 1))]) or 1.0
    bins, _ = np.histogram(np.clip(values, -edge, edge), BINS, (-edge, edge))
    places = np.round(np.linspace(0, 1, POINTS) * len(magnitudes)).astype(int)
    sums = np.concatenate([[0.0], np.cumsum(magnitudes)])
    return {
        "name": name,
        "count": len(values),
        "bins": bins.tolist(),
        "edge": edge,
        "quantiles": _short(magnitudes[np.minimum(places, len(magnitudes) - 1)]),
        "sums": _short(sums[places]),
    }


def _short(values: Sequence[float] | NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
