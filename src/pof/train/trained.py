"""A network that was trained, with the images that it is tested on and its Elastic."""

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from pof.data.protocol import Dataset
from pof.elastic import Elastic
from pof.errors import PofError
from pof.states import Magnitudes, Scope
from pof.train.build import build_data, build_model, magnitudes_of
from pof.train.recipe import DataRecipe, ModelRecipe, Recipe, recipe_from
from pof.train.records import Records
from pof.train.run import RECORDS


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
    scope: Scope = "layer",
    magnitudes: Magnitudes | None = None,
) -> Trained:
    """The network of a run's folder, or of a file of weights together with the names of its model and dataset.

    `magnitudes` is "unit" by default for a run of the method `pof` with its sphere, else "raw".
    """
    path = Path(source)
    if path.is_dir():
        recipe = recipe_of(path)
    elif model is None or data is None:
        raise PofError(f"{str(path)!r} is no run's folder: name --model and --data for a file of weights")
    else:
        recipe = Recipe("file", ModelRecipe(name=model), DataRecipe(name=data))
    images = build_data(recipe.data)
    network = build_model(replace(recipe.model, weights=str(path)), images.classes).eval()
    elastic = Elastic(network, scope=scope, magnitudes=magnitudes or magnitudes_of(recipe))
    return Trained(network, images, elastic, recipe)


def recipe_of(folder: Path) -> Recipe:
    """The recipe of a finished run."""
    records = Records(folder / RECORDS)
    first = records.last("start")
    if first is None:
        raise PofError(f"{str(folder)!r} holds no run: it has no {RECORDS}")
    if records.last("final") is None:
        raise PofError(f"the run in {str(folder)!r} has not finished: go on with the same pof train command")
    stored = dict(first["recipe"])
    method = {"name": stored.pop("method"), **stored.pop("settings")}
    return recipe_from({**stored, "method": method})
