import json
import sys
from pathlib import Path

import pytest
import torch

from lab.digits_demo import DemoSettings, main, run_demo

QUICK = DemoSettings(epochs=1, fine_tune_epochs=1, sparsities=(0.7,))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo with fewer epochs; everything else is the real thing."""
    monkeypatch.setattr("lab.digits_demo.DemoSettings", lambda: QUICK)


def test_pof_holds_where_plain_fine_tuning_falls() -> None:
    result = run_demo(DemoSettings(epochs=5, fine_tune_epochs=5, sparsities=(0.0, 0.8)))
    plain, ours = dict(result.curve("plain", "pruned")), dict(result.curve("pof", "pruned"))
    assert plain[0.0] > 0.97
    assert ours[0.0] > 0.97
    assert ours[0.8] > plain[0.8] + 0.1


def test_is_repeatable_and_leaves_the_random_state_alone() -> None:
    settings = QUICK
    before = torch.random.get_rng_state()
    assert run_demo(settings) == run_demo(settings)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.usefixtures("quick")
def test_prints_a_table_and_draws_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.png"
    assert main(["--plot", str(plot)]) == 0
    printed = capsys.readouterr()
    assert "70%" in printed.out
    assert "500 test images" in printed.out
    assert "fine-tuning, pof (20 steps)" in printed.err
    assert all(len(line) <= 80 or str(plot) in line for line in printed.out.splitlines())
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("quick")
def test_json_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["test_images"] == 500
    assert {row["network"] for row in printed["rows"]} == {"plain", "plain, unit", "pof", "pof, raw"}


@pytest.mark.usefixtures("quick")
def test_a_plot_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.png").mkdir()
    for path in ("missing/plot.png", "plot.xyz", "folder.png"):
        assert main(["--plot", str(tmp_path / path)]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("pof: cannot ")
        assert "training" not in printed.err, "it is refused before the work"
    assert main(["--json", "--plot", "plot.png"]) == 2
    assert "leave --plot out" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_without_matplotlib_the_figures_are_still_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([]) == 0
    printed = capsys.readouterr()
    assert "70%" in printed.out
    assert "pip install matplotlib" in printed.out
