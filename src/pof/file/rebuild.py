"""The tensors of a state, from what was read of a file, by the functions that a live model uses."""

from typing import cast

import torch
from torch import Tensor, nn

from pof.errors import PofError, PofFileError
from pof.file.decode import Decoder
from pof.file.header import TensorInfo
from pof.file.layout import Needed
from pof.on_sphere import fill_rows
from pof.planning import Entry
from pof.recovery import fill_band
from pof.rows import rescale_rows
from pof.states import DENSE, Magnitudes, State, band_counts
from pof.weight_states import ElasticWeight


def weights_of(decoder: Decoder, state: State, needed: Needed) -> dict[str, Tensor]:
    """The pruned tensors in `state`, by the functions that a live model uses."""
    magnitudes = cast(Magnitudes, decoder.head.magnitudes)
    parts = decoder.head.of_role("pruned")
    weights = decoder.weights()
    if state == DENSE:
        return weights
    if not needed.by_rank:
        if needed.signs > needed.values:
            for number, info in enumerate(parts):
                alpha = decoder.alpha(number, needed.signs - 1, needed.values - 1)
                _fill(weights[info.name], decoder.band(number, needed), alpha, decoder.norms(info), _entry(info))
        elif magnitudes == "unit":
            for info in parts:
                _rescale(weights[info.name], decoder.norms(info), _entry(info))
        return weights
    entries = [_entry(info) for info in parts]
    elastic = [
        ElasticWeight(entry, nn.Parameter(weight, requires_grad=False), magnitudes, many_states=False, norms=norms)
        for entry, weight, norms in zip(entries, weights.values(), map(decoder.norms, parts), strict=True)
    ]
    try:
        for weight in elastic:
            weight.dense()
    except PofError as error:
        raise PofFileError(str(error)) from None
    keys = [weight.keys_across() for weight in elastic] if decoder.head.scope == "global" else None
    for weight, counts in zip(elastic, band_counts(entries, keys, state), strict=True):
        weight.write(counts)
    return {weight.entry.name: weight.parameter.detach() for weight in elastic}


def _fill(kept: Tensor, band: Tensor, alpha: float, norms: Tensor | None, entry: Entry) -> None:
    if norms is None:
        fill_band(kept, band.to(kept.dtype), alpha)
    else:
        fill_rows(kept, band, alpha, norms, entry)
        _rescale(kept, norms, entry)


def _rescale(weight: Tensor, norms: Tensor | None, entry: Entry) -> None:
    rows, dims = entry.rows(weight)
    if norms is not None:
        rescale_rows(rows, dims, norms, torch.float64)


def _entry(info: TensorInfo) -> Entry:
    return Entry(info.name, "", info.shape, info.groups, info.sparsity)
