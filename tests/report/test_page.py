"""The report page works in a real browser, offline, narrow and dark."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from shown import Page, facts

import pof
from pof.cli.main import main
from pof.core.library import core
from pof.errors import PofError
from pof.report.page import PARTS, write_page


def test_the_page_is_one_file_and_a_name_cannot_break_out(tmp_path: Path) -> None:
    run = {**facts(speed=False), "name": "</script><!-- page_style.html -->"}
    page = Path(write_page(tmp_path / "p.html", "</script><b>", "about", [run])).read_text()
    assert page.count("</script>") == page.count("<script") == len(PARTS)
    assert page.count("<style") == 1
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)", page)
    with pytest.raises(PofError, match=r"end in \.html"):
        write_page(tmp_path / "p.pdf", "", "", [])
    with pytest.raises(PofError, match="a folder that exists"):
        write_page(tmp_path / "none" / "p.html", "", "", [])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pof.save(pof.models.digits_convnet(), tmp_path / "m.pof", metadata={"model": "digits_convnet", "data": "digits"})
    assert main(["report", str(tmp_path / "m.pof"), "-o", str(tmp_path / "p.html"), "--no-speed"]) == 0
    assert capsys.readouterr().out.startswith(str(tmp_path / "p.html"))
    assert main(["report", str(tmp_path / "m.pof"), "--json", "--no-speed"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["rows"], shown["training"], shown["statistics"]) == ("m", [], [], "file")
    assert main(["report", str(tmp_path / "none"), "-o", str(tmp_path / "p.html")]) == 2
    assert main(["report", str(tmp_path / "m.pof"), "-o", "p.txt"]) == 2
    assert main(["report", str(tmp_path / "m.pof"), "--data", "digits"]) == 2
    assert "give --test too" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "m.pof"), "--no-speed", "--test", "--data", "cifar10"]) == 2
    assert "does not take" in capsys.readouterr().err


@pytest.mark.parametrize("kept", [False, True])
def test_a_file_is_tested_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: bool) -> None:
    path, facts_ = tmp_path / "m.pof", {"model": "digits_convnet", "data": "digits"}
    images = [pof.data.digits("train")[0][:64]] if kept else None
    pof.save(pof.models.digits_convnet(), path, metadata=facts_, calibrate=images)
    assert main(["report", str(path), "--test", "--json", "--no-speed"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert main(["sweep", str(path), "--json"]) == 0
    swept = json.loads(capsys.readouterr().out)
    assert shown["rows"] == swept["rows"] != []
    assert shown["test_images"] == 500
    assert shown["statistics"] == swept["statistics"] == ("file" if kept else "estimated")


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    epochs = [{"epoch": epoch, "loss": 1.0 / epoch, "accuracy": 0.9} for epoch in range(1, 61)]
    return [{**facts("one"), "training": epochs, "test_images": 2000}, facts("other", "unit")]


@pytest.fixture
def page(browser: Any, tmp_path: Path, runs: list[dict[str, Any]]) -> Page:
    return Page(browser, tmp_path / "p.html", runs)


def test_the_sliders_move_the_numbers(page: Page) -> None:
    assert page.text("title") == "Some networks"
    assert page.text("zeros").startswith("70.0 %")
    assert page.text("alpha") == "-"
    page.move("band", 30)
    assert page.text("zeros").startswith("30.0 %")
    assert page.text("filled").startswith("40.0 %")
    assert page.text("kept").startswith("30.0 %")
    assert float(page.text("alpha")) > 0
    assert min(page.areas().values()) > 0
    before = page.text("alpha")
    page.move("sparsity", 90)
    assert page.text("kept").startswith("10.0 %")
    assert page.text("alpha") != before
    page.move("sparsity", 20)
    assert page.text("zeros").startswith("20.0 %"), "the band cannot begin above the sparsity"
    page.browser.find_element("id", "sparsity").send_keys("\ue014")
    assert page.text("sparsity-shown") == "21 %", "the keyboard moves it too"


def test_tables_and_curves(page: Page) -> None:
    assert "recovered 50 % to 90 %" in page.text("states")
    assert "67.50 %" in page.text("states")
    assert page.header("states")[1] == ["state", *["as trained", "re-estimated"] * 2]
    assert page.text("accuracy-note").endswith("Tested on 2,000 images.")
    assert "dense" in page.text("stages")
    assert page.run("return document.querySelectorAll('#curves path').length") == 4
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert [line for line in page.browser.get_log("browser") if line["level"] == "SEVERE"] == []
    before = page.text("layer")
    page.move("run", 1, "change")
    assert page.text("layer") == before
    assert page.text("zeros").startswith("70.0 %")


@pytest.mark.parametrize(
    ("best", "ticks"),
    [
        (0.995, "90 % 95 % 100 %"),
        (0.895, "80 % 85 % 90 % 95 % 100 %"),
        (0.6, "50 % 60 % 70 % 80 % 90 % 100 %"),
        (0.02, "0 % 20 % 40 % 60 % 80 % 100 %"),
    ],
)
def test_the_accuracy_axis_begins_below_the_best_curve(browser: Any, tmp_path: Path, best: float, ticks: str) -> None:
    def row(sparsity: float, accuracy: float) -> dict[str, Any]:
        return {"sparsity": sparsity, "recover_from": sparsity, "zeros": sparsity, "accuracy": accuracy}

    run = facts(speed=False)
    runs = [{**run, "rows": [row(0.0, 1.0), row(0.9, lowest)]} for lowest in (best, 0.01)]
    page = Page(browser, tmp_path / "p.html", [*runs, {**run, "rows": [row(0.0, 0.999)]}])
    texts = page.run("return [...document.querySelectorAll('#curves text')].map((text) => text.textContent)")
    count = len(ticks.split(" % "))
    assert " ".join(texts[:count]) == ticks
    dots = page.run("return [...document.querySelectorAll('#curves circle')].map((dot) => +dot.getAttribute('cy'))")
    assert len(dots) == (5 if best < 0.1 else 4), "a point below the axis is not drawn"
    assert max(dots) <= 288, "the bottom of the chart"
    clip = page.run("return document.querySelector('#curves path').getAttribute('clip-path')")
    assert page.run(f"return document.querySelector('{clip[4:-1]} rect').getAttribute('height')") == "289"


def test_losses_over_epochs(browser: Any, tmp_path: Path) -> None:
    epochs = [{"epoch": e, "loss": 3.0 / e, "accuracy": 0.5 + e / 100 if e % 5 == 0 else None} for e in range(1, 11)]
    run = facts("ten", speed=False)
    runs = [{**run, "name": "none"}, {**run, "training": epochs}, {**run, "name": "one", "training": epochs[4:5]}]
    page = Page(browser, tmp_path / "p.html", runs)
    color = "(id) => [...document.querySelectorAll(`#${id} .dot`)].map((dot) => dot.style.background)"
    above, below = page.run(f"return ['legend', 'losses-legend'].map({color})")
    assert above[1:] == below, "a network has one colour"
    assert page.cells("#epochs tr") == [
        ["after epoch", "ten", "one"],
        ["5", "55.00 %", "55.00 %"],
        ["10", "60.00 %", "-"],
    ]
    assert page.text("losses-legend") == "tenone"
    dots = page.run("return [...document.querySelectorAll('#losses circle')].map((dot) => +dot.getAttribute('cy'))")
    assert len(dots) == 11
    assert dots[:10] == sorted(dots[:10]), "the loss falls"
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    page = Page(browser, tmp_path / "p.html", [run])
    assert page.run("return document.getElementById('training').hidden"), "a file was not trained here"


@pytest.mark.parametrize(("loss", "ticks"), [(0.0, "0 0.2"), (2e6, "0 5e5"), (3e-5, "0 1e-5"), (0.9, "0 0.2")])
def test_any_loss_has_an_axis(browser: Any, tmp_path: Path, loss: float, ticks: str) -> None:
    run = {**facts(speed=False), "rows": [], "training": [{"epoch": 1, "loss": loss, "accuracy": None}]}
    page = Page(browser, tmp_path / "p.html", [run])
    texts = page.run("return [...document.querySelectorAll('#losses text')].map((text) => text.textContent)")
    assert " ".join(texts[:2]) == ticks
    left = "return Math.min(...[...document.querySelectorAll('#losses text')].map((text) => text.getBBox().x))"
    assert page.run(left) >= 0, "nothing is cut off"
    assert page.run("return document.getElementById('epochs').parentElement.hidden"), "no epoch was tested"
    assert page.text("accuracy-note") == "Not tested yet: run pof report --test."


@pytest.mark.skipif(core() is None, reason="needs the compiled core")
def test_times_add_up_to_the_whole(page: Page, runs: list[dict[str, Any]]) -> None:
    times = runs[0]["times"]
    assert f"{times['ratio']:.2f}x as fast as the plain model in torch (BatchNorm not folded" in page.text("speed-note")
    assert "16 images at once, one thread" in page.text("speed-note")
    cells = page.cells("#times tbody tr")
    names, torch_times = [row[0] for row in cells], [row[1] for row in cells]
    assert names == [*(layer["name"] for layer in times["layers"]), "not in the layers", "the whole model"]
    assert float(torch_times[-1]) == pytest.approx(times["plain"], abs=1e-3)
    if torch_times[-2] != "-":
        assert sum(map(float, torch_times[:-1])) == pytest.approx(times["plain"], abs=0.01)


def test_a_phone_and_the_dark(page: Page) -> None:
    browser = page.browser
    phone = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        browser.refresh()
        width = page.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        assert width[0] <= width[1] == 360
        letters = page.run(
            "return [...document.querySelectorAll('svg')].map((svg) => "
            "12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width)"
        )
        assert len(letters) == 3
        assert min(letters) >= 12, "text in drawings keeps its size"
        first = "document.querySelector('#states tbody td')"
        wide = "document.getElementById('states').parentElement"
        assert page.run(f"return {wide}.classList.contains('more')"), "a shadow says that there is more"
        assert page.run(f"return getComputedStyle({wide}.previousElementSibling).display") == "block"
        before = page.run(f"return {first}.getBoundingClientRect().left")
        after = f"{wide}.scrollLeft = 1e4; return {first}.getBoundingClientRect().left"
        assert page.run(after) == before, "the first column stays"
        light = page.run("return getComputedStyle(document.body).backgroundColor")
        dark_mode = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_mode)
        dark = page.run("return getComputedStyle(document.body).backgroundColor")
        assert light == "rgb(255, 255, 255)" != dark
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert page.run("return getComputedStyle(document.querySelector('.cue')).display") == "none"
