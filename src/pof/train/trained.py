"""A network that was trained, with the images that it is tested on and its Elastic."""

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from pof.data.protocol import Dataset
from pof.elastic import Elastic
from pof.errors import PofError
from pof.states import Magnitudes, Scope
from pof.train.build import build_data, build_model
from pof.train.recipe import DataRecipe, ModelRecipe, recipe_from
from pof.train.records import Records
from pof.train.run import RECORDS


@dataclass(frozen=True)
class Trained:
    """What `load_trained` found."""

    model: nn.Module
    data: Dataset
    elastic: Elastic


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
        recipes = _recipes_of(path)
        on_sphere = recipes[2]
    elif model is None or data is None:
        raise PofError(f"{str(path)!r} is no run's folder: name --model and --data for a file of weights")
    else:
        recipes = (ModelRecipe(name=model), DataRecipe(name=data), False)
        on_sphere = False
    images = build_data(recipes[1])
    network = build_model(ModelRecipe(**{**vars(recipes[0]), "weights": str(path)}), images.classes).eval()
    ranked: Magnitudes = magnitudes or ("unit" if on_sphere else "raw")
    return Trained(network, images, Elastic(network, scope=scope, magnitudes=ranked))


def _recipes_of(folder: Path) -> tuple[ModelRecipe, DataRecipe, bool]:
    records = Records(folder / RECORDS)
    first = records.last("start")
    if first is None:
        raise PofError(f"{str(folder)!r} holds no run: it has no {RECORDS}")
    if records.last("final") is None:
        raise PofError(f"the run in {str(folder)!r} has not finished: go on with the same pof train command")
    stored = dict(first["recipe"])
    method = {"name": stored.pop("method"), **stored.pop("settings")}
    recipe = recipe_from({**stored, "method": method})
    return recipe.model, recipe.data, recipe.method == "pof" and recipe.settings.sphere
