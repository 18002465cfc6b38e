"""From a recipe to the things that it names: dataset, model, optimiser, method."""

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from pof.data import DATASETS
from pof.data.protocol import Dataset
from pof.elastic import Elastic
from pof.errors import PofError
from pof.methods import METHODS, Method, Span
from pof.models import MODELS
from pof.spherical import normalize_inputs
from pof.states import Magnitudes, Scope
from pof.train.recipe import DataRecipe, ModelRecipe, Recipe
from pof.train.weights import load_weights


def build_data(recipe: DataRecipe) -> Dataset:
    """The dataset."""
    if recipe.name not in DATASETS:
        raise PofError(f"data.name={recipe.name!r} is no dataset: known are {', '.join(DATASETS)}")
    settings: dict[str, Any] = {"root": recipe.root, "workers": recipe.workers} if recipe.name == "imagefolder" else {}
    dataset: Dataset = DATASETS[recipe.name](**settings)
    return dataset.holding_out(recipe.hold_out) if recipe.hold_out else dataset


def build_model(recipe: ModelRecipe, classes: int) -> nn.Module:
    """The model, with its starting weights."""
    model = MODELS[recipe.name](num_classes=classes) if recipe.name in MODELS else _import_model(recipe.name, classes)
    if recipe.weights:
        load_weights(model, recipe.weights)
    if recipe.normalize_inputs:
        normalize_inputs(model, "patch" if recipe.normalize_inputs == "patch" else "sample")
    if recipe.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def build_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """Stochastic gradient descent; biases and normalisation take part in weight decay, as in the paper's setting."""
    settings = recipe.optimizer
    return SGD(
        model.parameters(),
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.nesterov,
    )


def build_method(recipe: Recipe, model: nn.Module, optimizer: Optimizer, span: Span) -> Method:
    """The training method."""
    method: Method = METHODS[recipe.method](model, optimizer, recipe.settings, span)
    return method


def build_elastic(recipe: Recipe, model: nn.Module, scope: Scope = "layer") -> Elastic:
    """The trained model at any sparsity, ranked as it was trained."""
    return Elastic(model, magnitudes=magnitudes_of(recipe), scope=scope)


def magnitudes_of(recipe: Recipe) -> Magnitudes:
    """What to rank: "unit" for what was trained on the sphere, else "raw"."""
    return "unit" if getattr(recipe.settings, "sphere", False) else "raw"


def weights_facts(recipe: Recipe) -> dict[str, str]:
    """What a file of the weights of a run says of them."""
    return {
        "model": recipe.model.name,
        "data": recipe.data.name,
        "recipe": recipe.hash,
        "magnitudes": magnitudes_of(recipe),
        "scope": recipe.scope,
    }


def check_fit(model: nn.Module, data: Dataset, names: tuple[str, str]) -> None:
    """Raise if the model does not take the images or does not know all classes; `names` are those of both."""
    image = next(data.test_batches(1))[0].to(next(model.parameters()).device)
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            outputs = model.eval()(image)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise PofError(f"the model {names[0]!r} does not take {names[1]!r} images {data.shape}: {reason}") from None
    finally:
        for module, mode in training.items():
            module.training = mode
    if not isinstance(outputs, Tensor) or outputs.dim() != 2 or outputs.shape[1] < data.classes:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise PofError(f"the model {names[0]!r} must give (batch, {data.classes}) for {names[1]!r}, not {found}")


def _import_model(name: str, classes: int) -> nn.Module:
    module_name, colon, function = name.partition(":")
    if not colon or not module_name or not function:
        raise PofError(
            f"model.name={name!r} is no model: known are {', '.join(MODELS)}; your own is package.module:function"
        )
    try:
        make = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        where = (
            "write it as module:function, without .py" if ".py" in name else "it is looked for here and on PYTHONPATH"
        )
        raise PofError(f"model.name={name!r} cannot be imported ({error}): {where}") from None
    takes_classes = callable(make) and "num_classes" in inspect.signature(make).parameters
    try:
        made = make(num_classes=classes) if takes_classes else make()
    except TypeError as error:
        raise PofError(f"model.name={name!r}: {error}; it may take num_classes, and nothing else") from error
    if not isinstance(made, nn.Module):
        raise PofError(f"model.name={name!r} gave a {type(made).__name__}, not a torch.nn.Module")
    return made
