"""The tables of docs/results.md are those of the committed records."""

from pathlib import Path

from lab.experiments import experiments
from lab.results_page import dense_accuracy, read_paper, read_records, with_tables
from lab.run_experiments import Places, is_done

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    records = read_records(ROOT / "results" / "cifar10")
    paper, dense = (
        read_paper(ROOT / "results" / "paper.json"),
        dense_accuracy(ROOT / "results" / "cifar10-resnet20-dense.json"),
    )
    assert page == with_tables(page, records, paper, dense), "run python -m lab.results_page"


def test_the_page_says_how_much_is_done() -> None:
    planned = experiments("quick")
    done = sum(is_done(experiment, Places(ROOT / "runs", ROOT / "results" / "cifar10")) for experiment in planned)
    assert (
        f"So far {done} of {len(planned)} runs of the quick budget are done."
        in (ROOT / "docs" / "results.md").read_text()
    )
