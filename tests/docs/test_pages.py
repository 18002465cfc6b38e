"""The pages of the docs: their code runs, and the links, paths, tests and names in them are real."""

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from pof.data import DATASETS
from pof.methods import METHODS
from pof.trainer.recipe import Recipe

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "lab" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]
FOLDERS = "src|tests|lab|bench|docs|recipes|examples|tools"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.name)
def test_paths_that_are_named_exist(page: Path) -> None:
    named = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)(?:::\w+)?`", page.read_text())
    # NAME stands for what a reader is to choose.
    assert [path for path in named if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.fixture
def _own_methods() -> Iterator[None]:
    """The guide registers a method."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.mark.usefixtures("_own_methods")
@pytest.mark.parametrize("name", ["training", "file", "runtime", "index", "quickstart", "guide"])
def test_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / f"{name}.md"
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    assert names
    assert name != "training" or names["outcome"].finished


@pytest.mark.parametrize("page", ["docs/faq.md", "CONTRIBUTING.md"])
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    named, missing, file = 0, [], ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", (ROOT / page).read_text()):
        file, named = path or file, named + 1
        if not re.search(rf"def {name}\(", (ROOT / file).read_text()):
            missing.append(f"{file}::{name}")
    assert named > 20
    assert missing == []


def test_contributing_has_a_line_for_every_room() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## The house")[2].partition("## Rules")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = {name.rstrip("/") for row in rows for name in re.findall(r"`([\w./]+)`", row)}
    house = {path.name for path in (ROOT / "src" / "pof").iterdir() if path.is_dir() or path.suffix == ".py"}
    assert named == {name for name in house if not name.startswith("__")}


def test_the_page_on_training_names_everything() -> None:
    text = (DOCS / "training.md").read_text()
    (data_row,) = re.findall(r"^\| `data\.name` .*$", text, re.MULTILINE)
    assert re.findall(r"`(\w+)`", data_row) == list(DATASETS)
    assert re.findall(r"\[\w+\]\(methods/(\w+)\.md\)", text) == list(METHODS)
    parts = {part.name: part.default_factory for part in fields(Recipe) if is_dataclass(part.default_factory)}
    keys = {f"{name}.{key.name}" for name, part in parts.items() for key in fields(part)}
    assert len(keys) > 20
    assert {key for key in keys if f"`{key}`" not in text} == set()
