"""Make the tensors of a state from the chunks of a file, ranked as in a live model."""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor

from pof.errors import PofError, PofFileError
from pof.file import statistics_stream, stored_statistics
from pof.file.chunk_layout import Chunk, Needed
from pof.file.decode import Decoder
from pof.file.header import Head
from pof.ranking.ranked_weight import RankedWeight
from pof.ranking.recovery import fill_band
from pof.ranking.row_layout import RowLayout
from pof.ranking.row_norms import rescale_rows
from pof.ranking.shares import LayerSize, band_counts
from pof.ranking.sparsity_state import DENSE, Magnitudes, State
from pof.ranking.sphere_recovery import fill_rows


def tensors_of(
    head: Head, chunks: Iterable[tuple[Chunk, memoryview]], state: State, needed: Needed
) -> tuple[dict[str, Tensor], bool]:
    """All tensors in `state`, from the chunks that it needs: weights, statistics and everything else.

    Returns:
        the tensors, and whether BatchNorm has statistics of other weights, because the file keeps none for `state`.
    """
    decoder = Decoder(head)
    for chunk, data in chunks:
        decoder.read(chunk, data)
    found = {**decoder.plain, **_weights_of(decoder, state, needed)}
    steps = statistics_stream.between(decoder.statistics, state)
    if steps is not None:
        found |= stored_statistics.apply(decoder.plain, steps, decoder.norm_layers)
    foreign = state != DENSE and steps is None and bool(decoder.norm_layers)
    return {tensor.name: found[tensor.target or tensor.name] for tensor in head.tensors}, foreign


def _weights_of(decoder: Decoder, state: State, needed: Needed) -> dict[str, Tensor]:
    """The pruned tensors in `state`."""
    magnitudes = cast(Magnitudes, decoder.head.magnitudes)
    parts = decoder.head.of_role("pruned")
    weights = decoder.weights()
    if state == DENSE:
        return weights
    if not needed.by_rank:
        if needed.signs > needed.values:
            for number, info in enumerate(parts):
                alpha = decoder.alpha(number, needed.signs - 1, needed.values - 1)
                _fill(weights[info.name], decoder.band(number, needed), alpha, decoder.norms(info), info.layout)
        elif magnitudes == "unit":
            for info in parts:
                _rescale(weights[info.name], decoder.norms(info), info.layout)
        return weights
    try:
        ranked = [
            RankedWeight(
                weights[info.name],
                info.layout,
                magnitudes,
                name=info.name,
                many_states=False,
                norms=decoder.norms(info),
            )
            for info in parts
        ]
    except PofError as error:
        raise PofFileError(str(error)) from None
    keys = [weight.keys_across() for weight in ranked] if decoder.head.scope == "global" else None
    counts = band_counts([LayerSize(info.elements, info.sparsity) for info in parts], keys, state)
    found = {}
    for info, weight, pair in zip(parts, ranked, counts, strict=True):
        found[info.name] = torch.empty_like(weight.values)
        weight.write(pair, found[info.name])
    return found


def _fill(kept: Tensor, band: Tensor, alpha: float, norms: Tensor | None, layout: RowLayout) -> None:
    if norms is None:
        fill_band(kept, band.to(kept.dtype), alpha)
    else:
        fill_rows(kept, band, alpha, norms, layout)
        _rescale(kept, norms, layout)


def _rescale(weight: Tensor, norms: Tensor | None, layout: RowLayout) -> None:
    rows, dims = layout.rows(weight)
    if norms is not None:
        rescale_rows(rows, dims, norms, torch.float64)
