"""Real networks of others, built as bench/breadth.py builds them. `make test-wide` runs these; `make test` does not."""

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import torchvision_stubs
from foreign_networks import all_networks
from network_operations import Subject


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the libraries warn of what they like: what is tested here is pof."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@cache
def _missing() -> str:
    return torchvision_stubs.missing()


@pytest.fixture
def subject() -> Callable[[str], Subject]:
    """Build a network by its name in the benchmark; skip where its library is not installed."""

    def build(name: str) -> Subject:
        if not name.startswith("transformers/") and (reason := _missing()):
            pytest.skip(reason)
        return Subject(all_networks()[name])

    return build
