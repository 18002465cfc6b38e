"""The tables of docs/results.md are those of the committed records, and so is every accuracy in its text."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.experiments import experiments
from lab.pretrained_tables import read_pretrained, read_records
from lab.results_page import BEGIN, DEMO, dense_accuracy, draw_sizes, read_paper, with_tables
from lab.run_experiments import Places, is_done

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "lab" / "records"
PAGE = (ROOT / "docs" / "results.md").read_text()
WRITTEN = PAGE.partition(BEGIN)[0]
"""What is written by hand; the tables follow it."""


def test_the_page_is_up_to_date() -> None:
    records = read_records(RECORDS / "cifar10")
    tables = with_tables(PAGE, records, read_paper(), dense_accuracy(), read_pretrained(RECORDS))
    assert tables == PAGE, "run python -m lab.results_page"


def test_the_page_says_how_much_is_done() -> None:
    planned = experiments("quick")
    done = sum(is_done(experiment, Places(ROOT / "runs", RECORDS / "cifar10")) for experiment in planned)
    assert f"So far {done} of {len(planned)} runs of the quick budget are done." in PAGE


def accuracies(record: Any, inside: bool = False) -> Iterator[float]:
    """Every accuracy of a record, in per cent."""
    if isinstance(record, dict):
        for key, found in record.items():
            yield from accuracies(found, inside or key in ("accuracy", "calibrated"))
    elif isinstance(record, list):
        for found in record:
            yield from accuracies(found, inside)
    elif inside and isinstance(record, float):
        yield 100 * record


def test_every_accuracy_of_the_text_is_in_a_record() -> None:
    known = [found for file in RECORDS.rglob("*.json") for found in accuracies(json.loads(file.read_text()))]
    known += [found / 100 for found in accuracies(read_paper(), inside=True)]
    for record in (*read_records(RECORDS / "imagenet"), *read_records(RECORDS / "cifar10-fit")):
        known += [found for row in record["top1"].values() for found in row if found is not None]
    for notes in (ROOT / "lab" / "notes.md", RECORDS / "cifar10" / "README.md"):
        known += [float(found) for found in re.findall(r"\d\d\.\d+", notes.read_text())]
    # Figures such as 49x, 25.5 M weights and 0.43 points are no accuracies.
    written = re.findall(r"(?<![\d.,])\d\d\.\d{1,2}(?![\d.x]| M)", WRITTEN)
    assert len(written) > 200
    slack = {text: 0.5 * 10 ** -len(text.partition(".")[2]) + 1e-6 for text in written}
    assert [text for text in written if not any(abs(float(text) - each) <= slack[text] for each in known)] == []


def test_a_section_is_short() -> None:
    """Three to six sentences per claim, and a table or a picture: no wall of text."""
    sections = re.split(r"^## ", WRITTEN, flags=re.MULTILINE)[1:]
    claims = [section for section in sections if not section.startswith(("How it was done", "Tables"))]
    assert len(claims) > 10
    for claim in claims:
        prose = [line for line in claim.splitlines()[1:] if not line.startswith(("|", "!"))]
        part = max(" ".join(prose).split("###"), key=len)
        assert len(part.split()) < 400, claim.partition("\n")[0]


def test_the_picture_of_the_readme_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = Path(draw_sizes(RECORDS, DEMO, tmp_path / "sizes.png"))
    assert picture.read_bytes().startswith(b"\x89PNG")
