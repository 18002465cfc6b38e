"""What several tests of the runtime need."""

import pytest

from pof.runtime import engine_choice


@pytest.fixture
def _kernels_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the sparse kernels also where they are not faster: let the clock say that they take no time."""
    monkeypatch.setattr(engine_choice, "_step_times", lambda plan, leaves, work: dict.fromkeys(dict(work.steps), 0.0))
    monkeypatch.setattr(engine_choice, "MARGIN", 0.0)
    monkeypatch.setattr(engine_choice, "ROUNDS", 1)
    monkeypatch.setattr(engine_choice, "SECONDS", 0.0)
