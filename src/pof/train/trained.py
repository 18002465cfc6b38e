"""A network that was trained, with the images that it is tested on and its Elastic."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from torch import nn

from pof.data.protocol import Dataset
from pof.elastic import Elastic
from pof.errors import PofError
from pof.states import Magnitudes, Scope
from pof.train.build import build_data, build_model, magnitudes_of
from pof.train.origin import RECORDS
from pof.train.recipe import DataRecipe, ModelRecipe, Recipe, recipe_from
from pof.train.records import Records
from pof.train.weights import facts_of


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
