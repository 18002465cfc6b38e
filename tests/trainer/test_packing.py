"""`pof pack` of runs and files: the model says what is pruned, and `pof eval` tests what the file gives."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import pof
from pof.cli.main import main
from pof.data.digit_images import digits

MODEL = """
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.dw = nn.Sequential(nn.Conv2d(12, 12, 3, groups=12, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.c = nn.Sequential(nn.Conv2d(12, 24, 3, stride=2, bias=False), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten())
        self.a_last = nn.Linear(96, classes)

    def forward(self, x):
        return self.a_last(self.c(self.dw(self.stem(x))))
"""
RECIPE = Path(__file__).parents[2] / "recipes" / "digits-dense.toml"
SETTINGS = ("run.epochs=3", "method.name=nested", "table.sparsities=[]", "table.bands=[]")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A short run of a model of the user's own, whose names sort in another order than its layers run in."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "net_to_pack.py").write_text(MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path])
        importlib.invalidate_caches()
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        assert (
            main(["train", str(RECIPE), "--model", "net_to_pack:Net", "--out", str(folder / "run"), *sets, "--json"])
            == 0
        )
        yield folder / "run"


def accuracy_of(path: Path, sparsity: float) -> float:
    """What a user gets who loads the file."""
    import net_to_pack  # type: ignore[import-not-found]

    model = net_to_pack.Net().eval()
    pof.load(path, into=model, sparsity=sparsity)
    images, labels = digits("test")
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def test_the_model_of_a_run_says_which_layer_is_first(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pack", str(run), str(tmp_path / "m.pof")]) == 0
    text = capsys.readouterr().out
    assert "never pruned: stem.0.weight\n" in text
    assert "--calibrate adds them" in text


def test_eval_and_sweep_test_what_the_file_gives(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the file prunes other layers than the model's own plan would."""
    file = str(tmp_path / "m.pof")
    assert main(["pack", str(run), file, "--exclude", "c.*", "--calibrate", "--json"]) == 0
    found = {}
    for name, verb in (
        ("eval", ["eval", file, "--sparsity", "0.8"]),
        ("sweep", ["sweep", file, "--sparsities", "0.8"]),
    ):
        capsys.readouterr()
        assert main([*verb, "--json"]) == 0
        found[name] = json.loads(capsys.readouterr().out)
    expected = accuracy_of(tmp_path / "m.pof", 0.8)
    assert found["eval"]["accuracy"] == pytest.approx(expected, abs=1e-6)
    assert found["sweep"]["rows"][0]["calibrated"] == pytest.approx(expected, abs=1e-6)
    plain = str(tmp_path / "plain.pof")
    assert main(["pack", str(run), plain, "--exclude", "c.*", "--json"]) == 0
    capsys.readouterr()
    assert main(["eval", plain, "--sparsity", "0.8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(accuracy_of(Path(plain), 0.8), abs=1e-6)
    assert main(["eval", plain, "--sparsity", "0.8", "--calibrate", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)["accuracy"]
    assert again == pytest.approx(expected, abs=0.03), "the same network, with statistics estimated now"


def test_half_precision_is_kept_to_the_bit(run: Path, tmp_path: Path) -> None:
    tensors = {
        name: value.half() if value.is_floating_point() else value
        for name, value in load_file(run / "model.safetensors").items()
    }
    save_file(tensors, tmp_path / "half.safetensors", {"model": "net_to_pack:Net"})
    assert main(["pack", str(tmp_path / "half.safetensors"), str(tmp_path / "half.pof"), "--json"]) == 0
    for name, value in pof.open(tmp_path / "half.pof").state_dict().items():
        assert value.dtype == tensors[name].dtype
        assert torch.equal(value, tensors[name])


def test_what_cannot_be_calibrated_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"fc.weight": torch.randn(4, 4)}, tmp_path / "m.safetensors")
    assert main(["pack", str(tmp_path / "m.safetensors"), str(tmp_path / "m.pof"), "--calibrate"]) == 2
    assert "--calibrate needs the model and its dataset, and" in capsys.readouterr().err


def test_a_run_is_ranked_as_it_was_trained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    settings = ("run.epochs=1", "method.name=nested", "method.scope=global", "table.sparsities=[]", "table.bands=[]")
    sets = [word for setting in settings for word in ("--set", setting)]
    assert main(["train", str(RECIPE), "--out", str(run), *sets, "--json"]) == 0
    assert main(["pack", str(run), str(tmp_path / "model.pof")]) == 0
    assert pof.open(tmp_path / "model.pof").head.scope == "global"
    capsys.readouterr()
    assert main(["sweep", str(run), "--sparsities", "0.9", "--json"]) == 0
    assert {row["scope"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"global"}
    assert main(["sweep", str(run), "--sparsities", "0.9", "--scope", "layer", "--json"]) == 0
    assert {row["scope"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"layer"}
    assert main(["report", str(run), "--no-speed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["scope"] == "global"


@pytest.mark.parametrize("on_a_terminal", [False, True])
def test_a_terminal_shows_how_far_calibration_is(
    on_a_terminal: bool, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if on_a_terminal else "0")
    assert main(["pack", str(run), str(tmp_path / "m.pof"), "--exclude", "c.*", "--calibrate"]) == 0
    assert ("BatchNorm statistics" in capsys.readouterr().err) == on_a_terminal
