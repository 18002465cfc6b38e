"""What every method of `METHODS` keeps: it trains, reaches its target, and resumes to the same bits."""

from __future__ import annotations

import io
import math
import random
from copy import deepcopy
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import pof
from pof.data import digits
from pof.errors import PofError
from pof.methods import METHODS, Method, Span
from pof.models import digits_convnet


class OnePass:
    """The pass of one batch, as the loop gives it to a method."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        self._model, self._images, self._labels = model, images, labels
        self._first: Tensor | None = None

    def __call__(self, distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
        outputs = self._model(self._images)
        loss = F.cross_entropy(outputs, self._labels)
        self._first = outputs.detach() if self._first is None else self._first
        if distill:
            wanted = self._first if teacher is None else teacher(self._images).detach()
            soft, wanted = outputs / temperature, wanted / temperature
            divergence = (wanted.softmax(1) * (wanted.log_softmax(1) - soft.log_softmax(1))).sum(1).mean()
            divergence = divergence * temperature**2
            loss = (1 - distill) * loss + distill * divergence
        loss.backward()
        return loss.detach()


STEPS = 25
BATCH = 16
SETTINGS: dict[str, dict[str, Any]] = {
    "one_shot": {"distill": 0.1, "temperature": 2.0},
    "gradual": {"every": 4, "distill": 0.1},
    "cyclical": {"every": 3, "cycles": 2},
    "dpf": {"every": 4},
    "dsr": {"period": 3},
}
"""Periods that suit a run of a few steps, and a teacher, whom resumed runs must have too; all else is left as it is."""

HAVE_TARGET = [name for name, kind in METHODS.items() if "sparsity" in {item.name for item in fields(kind.Settings)}]
HAVE_SCOPE = [name for name in HAVE_TARGET if "scope" in {item.name for item in fields(METHODS[name].Settings)}]
STOPS = [(name, stop) for name in METHODS for stop in random.Random(name).sample(range(1, STEPS), 2)]
CARDS = Path(__file__).parents[2] / "docs" / "methods"


class Run:
    """Model, optimiser and method as a loop has them, and the loop: it uses nothing but the protocol."""

    def __init__(self, name: str, seed: int = 0, **settings: Any) -> None:
        torch.manual_seed(seed)
        self.model = digits_convnet()
        self.optimizer = SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        self.method = self.make_method(name, **settings)
        self.losses: list[float] = []

    def make_method(self, name: str, **others: Any) -> Method:
        kind = METHODS[name]
        settings = kind.Settings(**{**SETTINGS.get(name, {}), **others})
        made: Method = kind(self.model, self.optimizer, settings, Span(STEPS, steps_per_epoch=5, seed=3))
        return made

    def train(self, start: int, stop: int) -> None:
        images, labels = digits("train")
        for step in range(start, stop):
            chosen = torch.randint(len(images), (BATCH,), generator=torch.Generator().manual_seed(step))

            run_pass = OnePass(self.model, images[chosen], labels[chosen])

            self.optimizer.zero_grad()
            self.losses.append(float(self.method.gradients(step, run_pass)))
            self.optimizer.step()
            self.method.after_step(step)

    def state(self) -> dict[str, Any]:
        parts = (self.model, self.optimizer, self.method)
        return deepcopy({str(number): part.state_dict() for number, part in enumerate(parts)})

    def load(self, state: dict[str, Any]) -> None:
        for number, part in enumerate((self.model, self.optimizer, self.method)):
            part.load_state_dict(state[str(number)])


_finished: dict[str, tuple[Run, dict[str, float]]] = {}


def finished(name: str) -> tuple[Run, dict[str, float]]:
    """A whole run, made once, and its figures at the end."""
    if name not in _finished:
        run = Run(name)
        run.train(0, STEPS)
        figures = run.method.figures()
        run.method.finish()
        _finished[name] = run, figures
    return _finished[name]


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two nested states differ, in bits."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [where for key in one for where in differences(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return [] if one.dtype == other.dtype and torch.equal(one, other) else [path]
    return [] if type(one) is type(other) and one == other else [path]


def unread(run: Run) -> dict[str, Tensor]:
    """Those of the weights that the masks keep whose gradient is exactly zero."""
    masks = run.method.state_dict()["masks"]
    weights = {name: run.model.get_parameter(name) for name in masks}
    return {name: weight[masks[name] & (weight.grad == 0)].detach() for name, weight in weights.items()}


@pytest.mark.parametrize("name", METHODS)
def test_it_trains(name: str) -> None:
    run, _ = finished(name)
    assert sum(run.losses[-5:]) < 0.75 * sum(run.losses[:5])


@pytest.mark.parametrize("name", HAVE_TARGET)
def test_it_reaches_its_target_exactly(name: str) -> None:
    run, figures = finished(name)
    sizes, zeros = {}, {}
    for weight, parameter in pof.plan(run.model).parameters(run.model).items():
        sizes[weight], zeros[weight] = parameter.numel(), int((parameter == 0).sum())
    if name == "dsr":
        # In total; weights of filters that nothing reads get no gradient, and stay where they were regrown: at zero.
        target = round(0.8 * sum(sizes.values()))
        kept_at_zero = sum(int((parameter == 0).sum()) for parameter in unread(run).values())
        assert sum(zeros.values()) - kept_at_zero == target
        assert kept_at_zero < 0.001 * target
    else:
        target = sum(round(0.8 * size) for size in sizes.values())
        assert zeros == {weight: round(0.8 * size) for weight, size in sizes.items()}
    assert figures["sparsity"] == pytest.approx(target / sum(sizes.values()), abs=1e-12)


@pytest.mark.parametrize("name", HAVE_SCOPE)
def test_ranked_globally_it_reaches_its_target_in_all_layers_together(name: str) -> None:
    run = Run(name, scope="global")
    run.train(0, STEPS)
    run.method.finish()
    weights = pof.plan(run.model).parameters(run.model).values()
    zeros = [int((weight == 0).sum()) for weight in weights]
    assert sum(zeros) == round(0.8 * sum(weight.numel() for weight in weights))
    assert len({round(zero / weight.numel(), 2) for zero, weight in zip(zeros, weights, strict=True)}) > 1
    with pytest.raises(PofError, match=r"sparsity=0\.999 is more than"):
        Run(name, scope="global", sparsity=0.999)
    with pytest.raises(PofError, match="scope='all'"):
        Run(name, scope="all")


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(HAVE_TARGET)))
def test_without_a_target_it_stays_dense(name: str) -> None:
    run, _ = finished(name)
    assert all(bool((weight != 0).all()) for weight in pof.plan(run.model).parameters(run.model).values())


@pytest.mark.parametrize("name", METHODS)
def test_its_figures_are_finite_numbers(name: str) -> None:
    _, figures = finished(name)
    assert all(type(value) is float and math.isfinite(value) for value in figures.values()), figures


@pytest.mark.parametrize("name", METHODS)
def test_its_state_goes_through_a_file_and_back(name: str) -> None:
    run = Run(name)
    run.train(0, 7)
    state = run.method.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    # Refuses all but tensors, numbers and None in plain containers.
    loaded = torch.load(file, weights_only=True)
    other = Run(name, seed=1)
    other.method.load_state_dict(loaded)
    assert differences(other.method.state_dict(), state) == []
    other.load({**run.state(), "2": loaded})
    other.train(7, 14)
    assert differences(loaded, state) == [], "what was loaded from is left alone"


@pytest.mark.parametrize(("name", "stop"), STOPS)
def test_a_stopped_run_goes_on_to_the_same_bits(name: str, stop: int) -> None:
    whole, _ = finished(name)
    stopped = Run(name)
    stopped.train(0, stop)
    state = stopped.state()
    # Another start and other random numbers: nothing but the state may count.
    resumed = Run(name, seed=99)
    resumed.load(state)
    resumed.train(stop, STEPS)
    assert resumed.losses == whole.losses[stop:]
    resumed.method.finish()
    assert differences(resumed.state(), whole.state()) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_method_made_for_the_stopped_model_goes_on_too(name: str) -> None:
    """The other order: the model and its optimiser are loaded before the method is made."""
    whole, _ = finished(name)
    run = Run(name)
    run.train(0, 20)
    state = run.state()
    run.method.finish()
    run.load(state)
    run.method = run.make_method(name)
    run.method.load_state_dict(state["2"])
    run.train(20, STEPS)
    run.method.finish()
    assert differences(run.model.state_dict(), whole.model.state_dict()) == []


@pytest.mark.parametrize("name", METHODS)
def test_its_settings_can_be_written_in_a_recipe(name: str) -> None:
    settings = METHODS[name].Settings()
    for item in fields(settings):
        assert isinstance(getattr(settings, item.name), (bool, int, float, str, tuple))
        with pytest.raises(FrozenInstanceError):
            setattr(settings, item.name, 0)


@pytest.mark.parametrize("name", METHODS)
def test_its_card_names_its_settings(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text()
    assert card.startswith(f"# `{name}`: ")
    for part in ("## Formula", "## Settings", "## Cost", "## Source", "## How ours differs"):
        assert part in card
    listed = [line.split("|")[1:3] for line in card.splitlines() if line.startswith("| `")]
    defaults = [(item.name, getattr(METHODS[name].Settings(), item.name)) for item in fields(METHODS[name].Settings)]
    assert [(key.strip(), value.strip()) for key, value in listed] == [
        (f"`{key}`", _as_toml(value)) for key, value in defaults
    ]


def _as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_as_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
