"""Builds what a recipe names: dataset, model, optimiser, method."""

import inspect

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pof.data import DATASETS
from pof.data.protocol import Dataset
from pof.elastic.elastic_model import Elastic
from pof.errors import PofError, first_line
from pof.methods import Method, Span
from pof.models import MODELS
from pof.ranking.sparsity_state import Scope
from pof.sphere.spherical_layers import normalize_inputs
from pof.trainer.named_code import find_method, import_named
from pof.trainer.recipe import DataRecipe, ModelRecipe, Recipe
from pof.trainer.weight_files import load_weights


def build_data(recipe: DataRecipe) -> Dataset:
    """Build the dataset."""
    if recipe.name not in DATASETS:
        raise PofError(f"data.name={recipe.name!r} is not a known dataset: use one of {', '.join(DATASETS)}")
    known = DATASETS[recipe.name]
    dataset = known(**{name: getattr(recipe, name) for name in known.settings})
    return dataset.holding_out(recipe.hold_out) if recipe.hold_out else dataset


def build_model(recipe: ModelRecipe, classes: int) -> nn.Module:
    """Build the model, with its starting weights."""
    model = MODELS[recipe.name](num_classes=classes) if recipe.name in MODELS else _import_model(recipe.name, classes)
    if recipe.weights:
        load_weights(model, recipe.weights)
    if recipe.normalize_inputs:
        normalize_inputs(model, "patch" if recipe.normalize_inputs == "patch" else "sample")
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def build_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """Build stochastic gradient descent; weight decay includes biases and normalisation, as in the paper's setting."""
    settings = recipe.optimizer
    return SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )


def build_method(recipe: Recipe, model: nn.Module, optimizer: Optimizer, span: Span) -> Method:
    """Build the training method."""
    method: Method = find_method(recipe.method)(model, optimizer, recipe.settings, span)
    return method


def build_elastic(recipe: Recipe, model: nn.Module, scope: Scope = "layer") -> Elastic:
    """Build the `Elastic` of the trained model, which ranks weights as training did."""
    return Elastic(model, magnitudes=recipe.ranking.magnitudes, scope=scope)


def weights_facts(recipe: Recipe) -> dict[str, str]:
    """Return the metadata that is stored with the weights of a run."""
    return {
        "model": recipe.model.name,
        "data": recipe.data.name,
        "recipe": recipe.hash,
        "magnitudes": recipe.ranking.magnitudes,
        "scope": recipe.ranking.scope,
    }


def check_fit(model: nn.Module, data: Dataset, names: tuple[str, str]) -> None:
    """Raise if the model does not take the images or lacks classes; `names` are those of the model and the data."""
    image = next(data.test_batches(1))[0].to(next(model.parameters()).device)
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            outputs = model.eval()(image)
    except (RuntimeError, ValueError) as error:
        raise PofError(
            f"the model {names[0]!r} does not take {names[1]!r} images {data.shape}: {first_line(error)}"
        ) from error
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < data.classes:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise PofError(f"the model {names[0]!r} must give (batch, {data.classes}) for {names[1]!r}, not {found}")


def _import_model(name: str, classes: int) -> nn.Module:
    make = import_named(name, "model.name", "model", tuple(MODELS))
    takes_classes = callable(make) and "num_classes" in inspect.signature(make).parameters
    try:
        made = make(num_classes=classes) if takes_classes else make()
    except TypeError as error:
        raise PofError(
            f"model.name={name!r}: {first_line(error)}; it may take num_classes, and nothing else"
        ) from error
    if not isinstance(made, nn.Module):
        raise PofError(f"model.name={name!r} gave a {type(made).__name__}, not a torch.nn.Module")
    return made
