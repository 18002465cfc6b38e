"""The page on networks of others is written from its record."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RECORD = json.loads((ROOT / "bench" / "records" / "breadth.json").read_text())


@pytest.fixture(scope="module")
def breadth_page() -> ModuleType:
    """The module, which is no part of a package and needs neither timm nor torch."""
    spec = importlib.util.spec_from_file_location("breadth_page", ROOT / "bench" / "breadth_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_that_of_the_record(breadth_page: ModuleType) -> None:
    assert breadth_page.PAGE.read_text() == breadth_page.page(RECORD), "python bench/breadth.py --page"


def test_what_is_not_as_it_should_be_is_listed(breadth_page: ModuleType) -> None:
    network = {"library": "timm", "parameters": 10**6, "operations": {"plan": "pass", "compile": "PofError: no"}}
    speeds = {"reported": 1.2, "real": 0.8, "milliseconds": {"model": 8.0, "compiled": 10.0}}
    record = {"networks": {"timm/one": {**network, "speeds": speeds}}}
    assert breadth_page.failures(record) == [
        "timm/one: compile: PofError: no",
        "timm/one: reports 1.20x, is 0.80x",
        "timm/one: runs at 0.80x of the model's own speed",
    ]
    page = breadth_page.page(record)
    assert "| one | 1.00 M | - | **failed: compile** | - | 1.20x | 0.80x | 8.0 / 10.0 |" in page
    assert "All operations pass on 0 of 1" in page
