"""Writes a `.pof` file of trained weights, from whatever is known about them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pof.data.protocol import Dataset
from pof.elastic.model_saving import save
from pof.errors import PofError
from pof.file.writing import save_state_dict
from pof.trainer.accuracy_sweep import calibration_batches
from pof.trainer.from_recipe import build_data, weights_facts
from pof.trainer.recipe import DataRecipe
from pof.trainer.trained import load_at, recipe_of
from pof.trainer.weight_files import facts_of, read_weights


def facts_about(source: str | Path) -> dict[str, str]:
    """Return what a run's recipe or a file's metadata says about its weights: model, data, magnitudes, scope."""
    return weights_facts(recipe_of(Path(source))) if Path(source).is_dir() else dict(facts_of(source))


def pack(
    source: str | Path,
    target: str | Path,
    facts: Mapping[str, str],
    *,
    calibrate: bool,
    progress: Callable[[str, int, int], object] | None = None,
    **how: Any,
) -> int:
    """Write the weights of `source` to `target`, with the options `how` of `pof.save`; return its size in bytes.

    If the model is known, it says which layer is the first. Otherwise names and shapes decide; sorted names may mislead
    them. `calibrate` keeps BatchNorm statistics, estimated from the images that the network was trained with;
    `progress` is told how far that is, as in `pof.save`.
    """
    network, why = _network(source, facts)
    if calibrate:
        if network is None or "data" not in facts:
            raise PofError(f"--calibrate needs the model and its dataset, and {why or 'the dataset is not known'}")
        batches = list(calibration_batches(_data(source, facts)))
        return save(network, target, calibrate=batches, progress=progress, **how)
    state = read_weights(source)
    # Models are built in float32: the tensors of a half-precision network are written directly, bit for bit.
    full = all(value.dtype == torch.float32 for value in state.values() if value.is_floating_point())
    return save_state_dict(state, target, **how) if network is None or not full else save(network, target, **how)


def _network(source: str | Path, facts: Mapping[str, str]) -> tuple[nn.Module | None, str]:
    """Return the network, or None and the reason."""
    if "model" not in facts:
        return None, f"{str(source)!r} does not name its model: pack a run's folder"
    try:
        return load_at(source).model, ""
    except PofError as error:
        if Path(source).is_dir():
            raise
        return None, str(error)


def _data(source: str | Path, facts: Mapping[str, str]) -> Dataset:
    folder = Path(source)
    return build_data(recipe_of(folder).data if folder.is_dir() else DataRecipe(name=facts["data"]))
