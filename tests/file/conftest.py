"""Settings for the tests of the .pof file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pof.core.library import SWITCH, core


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where to save a model."""
    return tmp_path / "model.pof"


@pytest.fixture
def switch_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Call it with `on=False` to do everything in numpy from here on, and with `on=True` to use the core again."""

    def switch(*, on: bool) -> None:
        if on:
            monkeypatch.delenv(SWITCH, raising=False)
        else:
            monkeypatch.setenv(SWITCH, "1")
        core.cache_clear()
        assert on or core() is None

    yield switch
    monkeypatch.undo()
    core.cache_clear()


@pytest.fixture(params=["core", "numpy"])
def _either_core(request: pytest.FixtureRequest, switch_core: Callable[..., None]) -> None:
    """Once with the compiled core, once without."""
    switch_core(on=request.param == "core")
    if request.param == "core" and core() is None:
        pytest.skip("the core was not built")
