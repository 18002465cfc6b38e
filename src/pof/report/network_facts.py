"""What a page shows of a network, as plain facts: its weights, its file, its speed."""

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pof.elastic.elastic_model import Elastic
from pof.elastic.model_saving import save
from pof.file.pof_file import PofFile
from pof.planning.entry import Entry
from pof.planning.pruning_plan import plan
from pof.ranking.cuts import kth_magnitude
from pof.ranking.ranked_weight import RankedWeight
from pof.ranking.shares import GlobalRanking, band_counts
from pof.ranking.sparsity import prune_count
from pof.ranking.sparsity_state import Magnitudes, Scope, pruned_state
from pof.runtime.compiled_model import CompiledModel
from pof.runtime.fair_timing import ratio_to_plain

BINS = 80
STEPS = 100
"""Steps of the sliders. What each step cuts off is counted here, so that the page need not guess."""
FASTER_AT = 0.9
IMAGES_AT_ONCE, SMALL = 16, 64
"""Batch size when speed is measured, and the largest side of images that it is for: larger ones are timed singly."""
ROUNDS, LONGEST = 15, 5000.0
"""How often the speed is compared, and the milliseconds beyond which it is compared less often."""
ALL = "all layers, ranked together"
Facts = dict[str, Any]


def described(
    model: nn.Module, magnitudes: Magnitudes, file: str | Path | None = None, scope: Scope = "layer"
) -> Facts:
    """Describe the weights of a model, and its file; without one, the file that it would have.

    `statistics` says where the BatchNorm statistics of its pruned states come from: "file", "estimated" from data, or
    None for a network that has none.
    """
    chosen = plan(model)
    weights = chosen.parameters(model)
    has_statistics = any(getattr(module, "running_mean", None) is not None for module in model.modules())
    return {
        "layers": _layers(chosen.entries, [weights[entry.name].detach() for entry in chosen], magnitudes),
        "magnitudes": magnitudes,
        "statistics": None if not has_statistics else "estimated" if file is None else "file",
        **_file_facts(model, magnitudes, file, scope),
        "dense_bytes": sum(4 * value.numel() for value in model.state_dict().values()),
    }


def times_of(
    model: nn.Module, example: Tensor, magnitudes: Magnitudes, sparsity: float = FASTER_AT, scope: Scope = "layer"
) -> Facts:
    """Time a pruned model and its layers in `pof.compile` on one thread; the model is dense again afterwards.

    `ratio` is the speedup over the plain model in torch, with BatchNorm not folded, both taking turns; `compiled` and
    `plain` are the milliseconds of each. A layer's `dense` is the time that torch takes with BatchNorm folded.
    """
    batch = IMAGES_AT_ONCE if max(example.shape[2:], default=0) <= SMALL else 1
    images = example[:1].repeat(batch, *[1] * (example.dim() - 1))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with Elastic(model, magnitudes=magnitudes, scope=scope).at(sparsity):
            fast = CompiledModel(model, images, threads=1)
            layers = [asdict(each) for each in fast.times()]
            folded, compiled = fast.milliseconds()
            rounds = min(ROUNDS, max(3, int(LONGEST / (2 * folded + compiled))))
            ratio = ratio_to_plain(fast, model, images, rounds)
    finally:
        torch.set_num_threads(before)
    whole = {"ratio": ratio, "plain": ratio * compiled, "compiled": compiled}
    return {"sparsity": sparsity, "batch": batch, "layers": layers, **whole}


def _layers(entries: Sequence[Entry], weights: Sequence[Tensor], magnitudes: Magnitudes) -> list[Facts]:
    """Make one row per layer, and one for all of them as `scope="global"` ranks them."""
    ranked = [
        RankedWeight(weight.float(), entry.layout, magnitudes, name=entry.name, many_states=False)
        for entry, weight in zip(entries, weights, strict=True)
    ]
    sizes = [entry.size for entry in entries]
    states = [band_counts(sizes, None, pruned_state(step / STEPS)) for step in range(STEPS)]
    found = [
        {"name": entry.name, **_spread(weight.keys()), **_cuts(weight, [counts[number][0] for counts in states])}
        for number, (entry, weight) in enumerate(zip(entries, ranked, strict=True))
    ]
    across = [weight.keys_across() for weight in ranked]
    together = GlobalRanking(across, many=True)
    reached = [step / STEPS for step in range(STEPS) if together.reaches(step / STEPS)]
    for layer, counts in zip(found, zip(*map(together.counts, reached), strict=True), strict=True):
        layer["together"] = list(counts)
    return [*found, {"name": ALL, **_spread(torch.cat([keys.reshape(-1) for keys in across]))}] if found else []


def _spread(keys: Tensor) -> Facts:
    """Make a histogram. The outermost bins also hold what lies beyond; zeros are split between the two innermost."""
    values = keys.reshape(-1).cpu().numpy()
    magnitudes = np.abs(values)
    most = kth_magnitude(keys, int(0.999 * (len(values) - 1)))
    # The few beyond the edge would make all others too narrow to see; but if nearly all are zero, those few matter.
    edge = max(most, float(magnitudes.max()) / 100) or 1.0
    half = BINS // 2
    places = np.minimum(magnitudes / np.float32(edge) * half, half - 1).astype(int)
    below, above = (np.bincount(places[side], minlength=half) for side in (values < 0, values > 0))
    zeros = int(np.count_nonzero(values == 0))
    below[0] += zeros // 2
    above[0] += zeros - zeros // 2
    bins = [*below[::-1].tolist(), *above.tolist()]
    return {"count": len(values), "zeros": zeros, "bins": bins, "edge": edge}


def _cuts(weight: RankedWeight, counts: Sequence[int]) -> Facts:
    """Return the sum of the magnitudes between neighbouring steps, from which the page computes alpha.

    `alone` has the counts that are not `round(sparsity * n)`, which small networks have: the page knows the others.
    """
    magnitudes = weight.ordered_magnitudes()
    sums = [float(f"{magnitudes[low:high].sum():.5g}") for low, high in pairwise((*counts, weight.size))]
    others = {s: count for s, count in enumerate(counts) if count != prune_count(weight.size, s / STEPS)}
    return {"sums": sums, "alone": others}


def _file_facts(model: nn.Module, magnitudes: Magnitudes, file: str | Path | None, scope: Scope) -> Facts:
    """Return the stages of a file, and how many bytes are read from it for each state."""
    packed = file is None
    with tempfile.TemporaryDirectory() as folder:
        if file is None:
            file = Path(folder) / "model.pof"
            save(model, file, magnitudes=magnitudes, scope=scope)
        opened = PofFile(file)
        stages = [
            {"kind": s.kind, "gives": str(s.state or "-"), "bytes": s.bytes, "cumulative": s.cumulative}
            for s in opened.stages
        ]
        ends = sorted({0.0, *opened.head.stages})
        states = [(high, low) for high in ends for low in ends if low == high or 0 < low < high]
        reads = [
            {"sparsity": high, "recover_from": low, "bytes": opened.bytes_for(high, None if low == high else low)}
            for high, low in states
        ]
    ranking = {"scope": opened.head.scope, "values": opened.head.values}
    return {"stages": stages, "reads": reads, "packed": packed, **ranking}
