"""What the sliders of the page say is what `pof.Elastic` and the file do."""

from pathlib import Path
from typing import Any

import pytest
from shown import ROWS, Page, facts, network

import pof
from pof.report.network_facts import described

NETWORKS = (("plain", "raw"), ("pof", "unit"), ("pruned", "raw"), ("pruned", "unit"))
STATES = ((70, 70), (30, 70), (33, 57), (20, 60), (50, 90), (0, 99))


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Page:
    runs = [facts(f"{kind} {magnitudes}", magnitudes, kind, speed=False) for kind, magnitudes in NETWORKS]
    return Page(browser, tmp_path_factory.mktemp("page") / "p.html", runs)


def choose(page: Page, number: int, layer: int, band: int, sparsity: int) -> None:
    page.move("run", number, "change")
    page.move("layer", layer)
    page.move("sparsity", sparsity)
    page.move("band", band)


def areas_are_the_numbers(page: Page, count: int) -> None:
    for name, area in page.areas().items():
        assert area == pytest.approx(page.number(name) / count, abs=0.01), name


@pytest.mark.parametrize("number", range(len(NETWORKS)))
def test_each_layer(page: Page, number: int) -> None:
    kind, magnitudes = NETWORKS[number]
    model = network(kind)
    elastic = pof.Elastic(model, magnitudes=magnitudes)  # type: ignore[arg-type]
    for band, sparsity in STATES:
        elastic.recover(band / 100, sparsity / 100)
        for place, row in list(enumerate(elastic.layers()))[::3]:
            choose(page, number, place, band, sparsity)
            assert page.number("zeros") == row.zeros
            assert sum(map(page.number, ("zeros", "filled", "kept"))) == row.weights
            filled = page.number("filled")
            assert (
                page.text("alpha") == "-"
                if not filled
                else float(page.text("alpha")) == pytest.approx(row.alpha, rel=6e-3)
            )
            areas_are_the_numbers(page, row.weights)


@pytest.mark.parametrize("number", range(len(NETWORKS)))
def test_all_layers_together(page: Page, number: int) -> None:
    kind, magnitudes = NETWORKS[number]
    model = network(kind)
    elastic = pof.Elastic(model, scope="global", magnitudes=magnitudes)  # type: ignore[arg-type]
    for band, sparsity in STATES[:-1]:
        elastic.recover(band / 100, sparsity / 100)
        rows = elastic.layers()
        choose(page, number, len(rows), band, sparsity)
        assert page.number("zeros") == sum(row.zeros for row in rows)
        alphas = [row.alpha for row in rows if row.alpha]
        if alphas:
            shown = [float(part) for part in page.text("alpha").removeprefix("about ").split(" to ")]
            # A band of one weight, of which only the mean around it is known, is the worst.
            assert [shown[0], shown[-1]] == pytest.approx([min(alphas), max(alphas)], rel=0.07)
        else:
            assert page.text("alpha") == "-"
        areas_are_the_numbers(page, sum(row.weights for row in rows))
    choose(page, number, len(rows), 99, 99)
    assert "the most here: each layer keeps at least 1 %" in page.text("sparsity-shown")
    assert 'Ranked as pof.Elastic(scope="global") does' in page.text("weights-note")


def test_bytes_are_those_that_are_read(page: Page, tmp_path: Path) -> None:
    pof.save(network(), tmp_path / "m.pof")
    file = pof.open(tmp_path / "m.pof")
    for band, sparsity in (*STATES, (70, 90), (30, 90), (30, 70), (90, 90), (0, 0), (95, 95), (29, 29)):
        choose(page, 0, 0, band, sparsity)
        read = file.bytes_for(sparsity / 100, None if band == sparsity else band / 100)
        assert page.text("read") == f"{read / 1e3:.1f} kB", (band, sparsity)
    reads = page.text("reads")
    assert f"pruned at 70 %{file.bytes_for(0.7) / 1e3:.1f} kB" in reads
    assert f"recovered 30 % to 90 %{file.bytes_for(0.9, 0.3) / 1e3:.1f} kB" in reads


def test_words_fit_the_ranking(page: Page) -> None:
    choose(page, 0, 0, 30, 70)
    assert "kept as they are" in page.text("weights-note")
    choose(page, 1, 0, 30, 70)
    assert "kept as they are" not in page.text("weights-note")
    assert "divided by its norm" in page.text("weights-note")
    assert "scaled back to the norm" in page.text("weights-note")


def test_the_sparsity_does_not_drag_the_band(page: Page) -> None:
    choose(page, 0, 0, 40, 90)
    before = page.text("filled")
    page.move("sparsity", 20)
    assert page.text("band-shown") == "nothing is filled"
    assert page.text("zeros").startswith("20.0 %")
    page.move("sparsity", 90)
    assert (page.text("filled"), page.text("band-shown")) == (before, "40 %")


def test_a_curve_and_a_column_for_each_scope(browser: Any, tmp_path: Path) -> None:
    both = [{**row, "scope": scope, "accuracy": row["accuracy"] - less}
            for scope, less in (("layer", 0.0), ("global", 0.3)) for row in ROWS]  # fmt: skip
    page = Page(browser, tmp_path / "p.html", [{**facts("mine", speed=False), "rows": both}])
    assert page.header("states")[0] == ["", "mine, ranked by layer", "mine, ranked together"]
    assert page.run("return document.querySelectorAll('#curves path').length") == 4
    assert "pruned at 50 %65.00 %77.50 %35.00 %77.50 %" in page.text("states")
    assert page.run(  # each goes from left to right once
        "return [...document.querySelectorAll('#curves path')].every((path) => path.getAttribute('d')"
        ".match(/[ML]([\\d.]+)/g).map((x) => +x.slice(1)).every((x, i, all) => !i || x > all[i - 1]))"
    )


def test_statistics_of_a_file(browser: Any, tmp_path: Path) -> None:
    """As on the page of `pof demo`: only one accuracy is known, with the statistics that the file keeps."""
    pof.save(network(), tmp_path / "m.pof")
    rows = [{**row, "accuracy": None, "calibrated": row["accuracy"]} for row in ROWS]
    runs = [
        {"name": name, "rows": rows, **described(network(), "raw", tmp_path / "m.pof"), "times": None} for name in "ab"
    ]
    page = Page(browser, tmp_path / "p.html", runs)
    assert page.header("states") == [["", "a", "b"], ["state", "the file's", "the file's"]]
    assert "those that the file keeps" in page.text("accuracy-note")
    assert not any(word in page.text("accuracy-note") for word in ("estimated", "trained.", "Dashed"))
    assert "as it is90.00 %90.00 %" in page.text("states")
    assert page.text("file-note").startswith("The .pof file:")
    assert page.run("return document.getElementById('speed').hidden")
