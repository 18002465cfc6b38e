"""A trained network, with its Elastic and the images that it is tested on."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from torch import Tensor, nn

from pof.data import DATASETS
from pof.data.protocol import Dataset
from pof.elastic.elastic_model import Elastic
from pof.errors import PofError
from pof.file.locations import is_remote, local, suffix_of
from pof.file.pof_file import PofFile
from pof.ranking.sparsity_state import DENSE, Magnitudes, Scope, State, asked_state
from pof.trainer.accuracy_sweep import Accuracy, Statistics, calibration_batches, sweep, sweep_file
from pof.trainer.from_recipe import build_data, build_model, check_fit, weights_facts
from pof.trainer.recipe import DataRecipe, ModelRecipe, Recipe, recorded_recipe
from pof.trainer.run_origin import RECORDS
from pof.trainer.run_records import Records
from pof.trainer.weight_files import facts_of, load_state, read_weights

ANY_SIZE = 224
"""Height and width of images if nothing is known about them."""
CLASSES = 10
"""Number of classes to assume until the weights tell."""


@dataclass(frozen=True)
class Trained:
    """What `load_trained` returns."""

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
    """Load the network of a run's folder, or of a file of weights.

    A file may name its model, its dataset and its ranking, as a `.pof` file does; whatever it does not name must be
    given. A run is ranked as it was trained: by unit rows if on the sphere, and by its `scope`. The test images are
    those of the dataset, even if a run was tested on images that it held out of training.
    """
    path, folder = _found(source)
    for option, given in {"--model": model, "--data": data}.items():
        if folder is not None and given is not None:
            raise PofError(f"{option} {given} is for files of weights; a run knows its own: leave it out")
    facts = facts_of(path) if folder is None else weights_facts(recipe_of(folder))
    recipe = _recipe_for(path, facts, model, data) if folder is None else recipe_of(folder)
    images = build_data(replace(recipe.data, hold_out=0))
    network = build_model(replace(recipe.model, weights=str(path)), images.classes).eval()
    check_fit(network, images, (recipe.model.name, recipe.data.name))
    known = cast(Magnitudes, facts.get("magnitudes", recipe.ranking.magnitudes))
    known_scope = cast(Scope, facts.get("scope", "layer"))
    elastic = Elastic(network, scope=scope or known_scope, magnitudes=magnitudes or known)
    return Trained(network, images, elastic, recipe)


def sweep_stored(
    found: Trained, file: PofFile | None, states: Iterable[State]
) -> tuple[Statistics, Iterator[Accuracy]]:
    """Return which statistics are used, and the accuracy in each of `states`: of `file`, or else of `found.elastic`.

    The statistics are those that the file keeps for its states, if it does, or else estimated ones.
    """
    if file is None:
        return "estimated", sweep(found.model, found.elastic, found.data, states)
    which: Statistics = "kept" if file.kept_statistics() else "estimated"
    return which, sweep_file(found.model, file, found.data, states, statistics=which)


@dataclass(frozen=True)
class AtState:
    """A network in one state, and the size of the images that it takes."""

    model: nn.Module
    channels: int
    size: int
    """Height and width of the images."""


def load_at(
    source: str | Path,
    model: str | None = None,
    sparsity: float | None = None,
    recover_from: float | None = None,
    *,
    scope: Scope | None = None,
    calibrate: bool = False,
) -> AtState:
    """Load the network of a file or a run at a sparsity, with the BatchNorm statistics that a .pof file keeps for it.

    `calibrate` re-estimates the statistics of other sources, if their dataset is known.
    """
    path, folder = _found(source)
    recipe = None if folder is None else recipe_of(folder)
    facts = facts_of(path) if recipe is None else weights_facts(recipe)
    name = model or facts.get("model")
    if name is None:
        raise PofError(f"{str(path)!r} does not name its model: pass --model")
    state = DENSE if sparsity is None and recover_from is None else asked_state(sparsity, recover_from)
    band = state.band_start
    in_file = suffix_of(path) == ".pof"
    tensors = PofFile(path).state_dict(state.sparsity, band) if in_file else read_weights(path)
    network = _network_for(name, tensors)
    load_state(network, tensors, path)
    if not in_file and state != DENSE:
        magnitudes = cast(Magnitudes, facts.get("magnitudes", "raw"))
        elastic = Elastic(network, magnitudes=magnitudes, scope=scope or cast(Scope, facts.get("scope", "layer")))
        elastic.recover(band, state.sparsity) if band is not None else elastic.prune(state.sparsity)
        if calibrate and "data" in facts:
            data = build_data(DataRecipe(name=facts["data"]) if recipe is None else recipe.data)
            elastic.calibrate(calibration_batches(data))
    layers = [value for value in network.state_dict().values() if value.dim() in (2, 4)]
    if not layers:
        raise PofError(f"{str(path)!r} has no layers with weights: pass another file")
    known = DATASETS.get(facts.get("data", ""))
    channels, size, _ = (known and known.shape) or (layers[0].shape[1], ANY_SIZE, ANY_SIZE)
    return AtState(network, channels, size)


def _network_for(name: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Build the named model, with as many classes as the tensors have."""
    recipe = ModelRecipe(name=name, channels_last=False)
    network = build_model(recipe, CLASSES).eval()
    own = network.state_dict()
    shared = [key for key in own if key in tensors and min(own[key].dim(), tensors[key].dim()) > 0]
    other = [len(tensors[key]) for key in shared if len(tensors[key]) != len(own[key])]
    return build_model(recipe, other[-1]).eval() if other else network


def _found(source: str | Path) -> tuple[str | Path, Path | None]:
    """Return the path or URL of `source`, and the folder if it is a run's."""
    if is_remote(source):
        return source, None
    path = Path(local(source))
    if not path.exists():
        siblings = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        near = get_close_matches(path.name, siblings, n=1)
        perhaps = f", perhaps {near[0]!r}" if near else ""
        raise PofError(f"there is no {str(path)!r}{perhaps}: name a run's folder or a file of weights")
    return path, path if path.is_dir() else None


def _recipe_for(path: str | Path, facts: Mapping[str, str], model: str | None, data: str | None) -> Recipe:
    """Return a recipe for a file of weights: from what is given, or else from the file's metadata."""
    found = {"--model": model or facts.get("model"), "--data": data or facts.get("data")}
    missing = [option for option, value in found.items() if value is None]
    if missing:
        unknown = " and ".join(option.removeprefix("--") for option in missing).replace("data", "dataset")
        raise PofError(f"{str(path)!r} does not name its {unknown}: pass {' and '.join(missing)}")
    return Recipe("file", ModelRecipe(name=str(found["--model"])), DataRecipe(name=str(found["--data"])))


def recipe_of(folder: Path) -> Recipe:
    """Return the recipe of a finished run."""
    records = Records(folder / RECORDS)
    first = records.origin()
    if first is None:
        raise PofError(f"{str(folder)!r} is not a run's folder: it has no {RECORDS}")
    if records.last("final") is None:
        raise PofError(f"the run in {str(folder)!r} has not finished: resume it with the same pof train command")
    return recorded_recipe(first["recipe"])
