"""A network that was trained, with the images that it is tested on and its Elastic."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from torch import nn

from pof.data.protocol import Dataset
from pof.elastic import Elastic
from pof.errors import PofError
from pof.file import PofFile
from pof.states import DENSE, Magnitudes, Scope, asked_state
from pof.train.build import build_data, build_model, magnitudes_of, weights_facts
from pof.train.origin import RECORDS
from pof.train.recipe import DataRecipe, ModelRecipe, Recipe, recipe_from
from pof.train.records import Records
from pof.train.weights import facts_of, load_state, read_weights

SIZES = {"cifar10": 32, "fashion_mnist": 28, "digits": 8}
"""Height and width of the images, of datasets that have them fixed."""


@dataclass(frozen=True)
class Trained:
    """What `load_trained` found."""

    model: nn.Module
    data: Dataset
    elastic: Elastic
    recipe: Recipe


def load_trained(
    source: str | Path,
    *,
    model: str | None = None,
    data: str | None = None,
    scope: Scope | None = None,
    magnitudes: Magnitudes | None = None,
) -> Trained:
    """The network of a run's folder, or of a file of weights.

    A file may say itself which model and dataset are its own and how it is ranked, as a `.pof` file does; what it does
    not say has to be given. Else `magnitudes` is "unit" for a run of the method `pof` with its sphere, or "raw".
    """
    path = Path(source)
    if not path.exists():
        raise PofError(f"there is no {str(path)!r}: name a run's folder or a file of weights")
    facts = {} if path.is_dir() else facts_of(path)
    recipe = recipe_of(path) if path.is_dir() else _recipe_for(path, facts, model, data)
    images = build_data(recipe.data)
    network = build_model(replace(recipe.model, weights=str(path)), images.classes).eval()
    known = cast(Magnitudes, facts.get("magnitudes", magnitudes_of(recipe)))
    known_scope = cast(Scope, facts.get("scope", "layer"))
    elastic = Elastic(network, scope=scope or known_scope, magnitudes=magnitudes or known)
    return Trained(network, images, elastic, recipe)


@dataclass(frozen=True)
class AtState:
    """A network in one state, and the images that it takes."""

    model: nn.Module
    channels: int
    size: int
    """Height and width."""


def load_at(
    source: str | Path, model: str | None = None, sparsity: float | None = None, recover_from: float | None = None
) -> AtState:
    """The network of a file or a run at a sparsity; with the BatchNorm statistics that a .pof file keeps for it."""
    path = Path(source)
    if not path.exists():
        raise PofError(f"there is no {str(path)!r}: name a run's folder or a file of weights")
    recipe = recipe_of(path) if path.is_dir() else None
    facts = facts_of(path) if recipe is None else weights_facts(recipe)
    name = model or facts.get("model")
    if name is None:
        raise PofError(f"{str(path)!r} does not say of which model it is: name --model")
    state = DENSE if sparsity is None and recover_from is None else asked_state(sparsity, recover_from)
    band = state.band_start
    in_file = path.suffix == ".pof"
    tensors = PofFile(path).state_dict(state.sparsity, band) if in_file else read_weights(path)
    matrices = [tensor for tensor in tensors.values() if tensor.dim() in (2, 4)]
    if not matrices:
        raise PofError(f"{str(path)!r} holds no weights of layers")
    network = build_model(ModelRecipe(name=name, channels_last=False), len(matrices[-1])).eval()
    load_state(network, tensors, path)
    if not in_file and state != DENSE:
        magnitudes = cast(Magnitudes, facts.get("magnitudes", "raw"))
        elastic = Elastic(network, magnitudes=magnitudes)
        elastic.recover(band, state.sparsity) if band is not None else elastic.prune(state.sparsity)
    return AtState(network, matrices[0].shape[1], SIZES.get(facts.get("data", ""), 224))


def _recipe_for(path: Path, facts: Mapping[str, str], model: str | None, data: str | None) -> Recipe:
    """A recipe for a file of weights: what is given, else what the file says of itself."""
    found = {"--model": model or facts.get("model"), "--data": data or facts.get("data")}
    missing = [option for option, value in found.items() if value is None]
    if missing:
        raise PofError(f"{str(path)!r} does not say of which model and dataset it is: name {' and '.join(missing)}")
    return Recipe("file", ModelRecipe(name=str(found["--model"])), DataRecipe(name=str(found["--data"])))


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a finished run."""
    records = Records(folder / RECORDS)
    first = records.origin()
    if first is None:
        raise PofError(f"{str(folder)!r} holds no run: it has no {RECORDS}")
    if records.last("final") is None:
        raise PofError(f"the run in {str(folder)!r} has not finished: go on with the same pof train command")
    stored = dict(first["recipe"])
    method = {"name": stored.pop("method"), **stored.pop("settings")}
    return recipe_from({**stored, "method": method})
