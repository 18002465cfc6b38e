"""Methods of others: registered by name, or named in a recipe as `module:Class`, without touching the tree."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn
from torch.optim import Optimizer

import pof
from pof.elastic.distillation import RunPass
from pof.errors import PofError
from pof.methods import METHODS, Span, TrainedRanking
from pof.trainer.recipe import recipe_from
from pof.trainer.run import run_recipe

SOURCE = Path(__file__)


class Shrink:
    """A method of ten lines: every step makes all weights of the plan a little smaller."""

    @dataclass(frozen=True)
    class Settings:
        by: float = 0.001

    def __init__(self, model: nn.Module, optimizer: Optimizer, settings: Settings, span: Span) -> None:
        self._weights, self._by = pof.plan(model).parameters(model), settings.by
        self._steps = 0

    @staticmethod
    def ranking(settings: Settings) -> TrainedRanking:
        return TrainedRanking("global")

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        return run_pass()

    def after_step(self, step: int) -> None:
        self._steps += 1
        for weight in self._weights.values():
            weight.data.mul_(1 - self._by)

    def finish(self) -> None: ...

    def figures(self) -> dict[str, float]:
        return {"shrunk": float(self._steps)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps = state["steps"]


@pytest.fixture(autouse=True)
def _own_table() -> Iterator[None]:
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


def recipe(name: str, **settings: Any) -> Any:
    return recipe_from(
        {
            "model": {"name": "digits_convnet"},
            "data": {"name": "digits", "batch": 64},
            "run": {"epochs": 1},
            "table": {"sparsities": [0.5], "bands": [], "calibrate": False},
            "method": {"name": name, **settings},
        }
    )


@pytest.mark.parametrize("how", ["registered", "named"])
def test_a_method_of_somebody_else_trains(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SOURCE.parent))
    name = f"{SOURCE.stem}:Shrink"
    if how == "registered":
        name = "shrink"
        pof.methods.register(name, Shrink)
        pof.methods.register(name, Shrink)
    made = recipe(name, by=0.01)
    assert made.settings.by == 0.01
    outcome = run_recipe(made, tmp_path / "run")
    assert outcome.figures["shrunk"] == 20.0
    assert outcome.table[0]["scope"] == "global", "as the method says that its networks are ranked"
    assert run_recipe(recipe(name, by=0.01), tmp_path / "run").already


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(PofError, match="there is a method 'dpf' already"):
        pof.methods.register("dpf", Shrink)


class Lacking:
    """Has no settings, and no `ranking`."""

    def gradients(self, step: int, run_pass: RunPass) -> Tensor:
        return run_pass()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(PofError, match=r"'mine' has no Settings \(a frozen dataclass\), ranking, after_step, finish"):
        pof.methods.register("mine", Lacking)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dfp", r"method.name='dfp' must be one of .*perhaps 'dpf'; name your own as package.module:Class"),
        ("nowhere:Class", r"method.name='nowhere:Class' cannot be imported .*No module named 'nowhere'"),
        ("pof.methods.dpf:Nothing", "cannot be imported"),
        ("pof.errors:PofError", "has no Settings"),
        ("methods/mine.py:Class", "without .py"),
        (":Class", "is not a known method"),
    ],
)
def test_a_name_that_is_none(name: str, message: str) -> None:
    with pytest.raises(PofError, match=message):
        recipe(name)


def test_settings_of_a_foreign_method_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pof.methods.register("shrink", Shrink)
    with pytest.raises(PofError, match=r"unknown key 'bye' in .*known keys are by"):
        recipe("shrink", bye=0.1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_says_how_its_networks_are_ranked(name: str) -> None:
    kind = METHODS[name]
    found = kind.ranking(kind.Settings())
    assert found.scope == getattr(kind.Settings(), "scope", "layer")
    assert found.magnitudes == ("unit" if name == "pof" else "raw")
