"""The report page: right facts, and a page that works in a real browser, offline, narrow and dark."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pof
from pof.cli.main import main
from pof.errors import PofError
from pof.native import core
from pof.portrait import ALL, described, times_of
from pof.report.page import write_page

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ROWS = [
    {"sparsity": s, "recover_from": r, "zeros": r, "accuracy": 0.9 - s / 2, "calibrated": 0.9 - s / 4 if s else None}
    for s, r in ((0.0, 0.0), (0.5, 0.5), (0.9, 0.9), (0.9, 0.5))
]


def facts(name: str = "digits", magnitudes: Any = "raw") -> dict[str, Any]:
    torch.manual_seed(0)
    model = pof.models.digits_convnet().eval()
    times = times_of(model, torch.randn(1, 1, 8, 8), magnitudes) if core() is not None else None
    return {"name": name, "rows": ROWS, **described(model, magnitudes), "times": times}


def test_facts_of_a_model() -> None:
    found = facts()
    model = pof.models.digits_convnet()
    plan = pof.plan(model)
    assert [layer["name"] for layer in found["layers"]] == [*(entry.name for entry in plan), ALL]
    assert found["layers"][-1]["count"] == plan.weights
    assert all(sum(layer["bins"]) == layer["count"] for layer in found["layers"])
    assert found["stages"][-1]["gives"] == "dense"
    assert found["dense_bytes"] == 4 * sum(v.numel() for v in model.state_dict().values())
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_thresholds_and_alphas_are_those_of_the_core(magnitudes: Any) -> None:
    torch.manual_seed(0)
    model = pof.models.digits_convnet().eval()
    layer = described(model, magnitudes)["layers"][0]
    weight = model.get_parameter(layer["name"]).detach().double()
    if magnitudes == "unit":
        weight = weight / weight.flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.dim() - 1))
    sorted_ = np.sort(weight.abs().reshape(-1).numpy())
    n, places = len(sorted_), len(layer["sums"]) - 1
    for low, high in ((0.3, 0.7), (0.5, 0.9)):
        first, last = round(low * n), round(high * n)
        alpha = (layer["sums"][round(high * places)] - layer["sums"][round(low * places)]) / (last - first)
        assert alpha == pytest.approx(sorted_[first:last].mean(), rel=1e-3)
        assert layer["quantiles"][round(high * places)] == pytest.approx(sorted_[last], rel=1e-3)


def test_the_page_is_one_file_and_a_name_cannot_break_out(tmp_path: Path) -> None:
    page = write_page(tmp_path / "p.html", "</script><b>", "about", [{**facts(), "name": "</script>"}]).read_text()
    assert page.count("</script>") == 2
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)", page)
    with pytest.raises(PofError, match=r"end in \.html"):
        write_page(tmp_path / "p.pdf", "", "", [])
    with pytest.raises(PofError, match="a folder that exists"):
        write_page(tmp_path / "none" / "p.html", "", "", [])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pof.save(pof.models.digits_convnet(), tmp_path / "m.pof", metadata={"model": "digits_convnet", "data": "digits"})
    assert main(["report", str(tmp_path / "m.pof"), "-o", str(tmp_path / "p.html"), "--no-speed"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "p.html")
    assert main(["report", str(tmp_path / "m.pof"), "--json", "--no-speed"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "m"
    assert main(["report", str(tmp_path / "none"), "-o", str(tmp_path / "p.html")]) == 2
    assert main(["report", str(tmp_path / "m.pof"), "-o", "p.txt"]) == 2


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no Chromium: install chromium and chromium-driver (as root, `make browser` does)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    profile = tmp_path_factory.mktemp("profile")
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage",
                 "disable-background-networking", "disable-component-update", "disable-sync", "window-size=1000,900",
                 f"user-data-dir={profile}"):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def opened(browser: Any, folder: Path) -> Any:
    page = write_page(folder / "p.html", "Two networks", "A test.", [facts("one"), facts("other", "unit")])
    browser.get(page.as_uri())
    return browser


def text(browser: Any, name: str) -> str:
    return str(browser.execute_script(f"return document.getElementById('{name}').textContent"))


def move(browser: Any, name: str, value: int) -> None:
    """Move a slider as a hand does: it is given the value, and tells."""
    browser.execute_script(
        f"const s = document.getElementById('{name}'); s.value = {value}; "
        "s.dispatchEvent(new Event('input', {bubbles: true}))"
    )


def test_the_sliders_move_the_numbers(browser: Any, tmp_path: Path) -> None:
    opened(browser, tmp_path)
    assert text(browser, "title") == "Two networks"
    assert text(browser, "zeros").startswith("70.0 %")
    assert text(browser, "alpha") == "-"
    move(browser, "band", 30)
    assert text(browser, "zeros").startswith("30.0 %")
    assert text(browser, "filled").startswith("40.0 %")
    assert text(browser, "kept").startswith("30.0 %")
    assert float(text(browser, "alpha")) > 0
    colors = browser.execute_script(
        "return [...document.querySelectorAll('#histogram rect')].map((bar) => bar.getAttribute('fill'))"
    )
    assert {"var(--zero)", "var(--filled)", "var(--kept)"} == set(colors)
    before = text(browser, "alpha")
    move(browser, "sparsity", 90)
    assert text(browser, "kept").startswith("10.0 %")
    assert text(browser, "alpha") != before
    move(browser, "sparsity", 20)
    assert text(browser, "zeros").startswith("20.0 %"), "the band cannot begin above the sparsity"
    browser.find_element("id", "sparsity").send_keys("\ue014")
    assert text(browser, "sparsity-shown") == "21 %", "the keyboard moves it too"


def test_tables_and_curves(browser: Any, tmp_path: Path) -> None:
    opened(browser, tmp_path)
    assert "recovered 50 % to 90 %" in text(browser, "states")
    assert "67.50 %" in text(browser, "states")
    assert "dense" in text(browser, "stages")
    assert len(browser.find_elements("css selector", "#curves path")) == 4
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [line for line in browser.get_log("browser") if line["level"] == "SEVERE"] == []
    before = text(browser, "layer")
    browser.execute_script(
        "const r = document.getElementById('run'); r.value = 1; r.dispatchEvent(new Event('change'))"
    )
    assert text(browser, "layer") == before
    assert text(browser, "zeros").startswith("70.0 %")


def test_a_phone_and_the_dark(browser: Any, tmp_path: Path) -> None:
    opened(browser, tmp_path)
    phone = {"width": 360, "height": 700, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    width = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1] == 360
    light = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    dark_mode = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark_mode)
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert light == "rgb(255, 255, 255)" != dark
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
