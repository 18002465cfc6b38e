"""`pof.export`: files that other tools read, of the model as it is, which is not touched."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import fsspec
import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import pof
from pof.cli.main import main
from pof.runtime.exported_files import Exported, _deviation

SHIPPED = Path(pof.__file__).parent / "data" / "shipped" / "cifar10-resnet20-nested.pof"
# Of torch itself, when it first compiles.
pytestmark = pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")


class Net(nn.Module):
    """A convolution, a BatchNorm and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.conv = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.norm, self.fc = nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, images: Tensor, scale: Tensor | None = None) -> Tensor:
        found = self.fc(self.norm(self.conv(self.stem(images).relu())).relu().mean((2, 3)))
        return found if scale is None else found * scale[:, None]


def snapshot(model: nn.Module) -> tuple[dict[str, Tensor], list[bool], list[Any]]:
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    return tensors, modes, [p.grad for p in model.parameters()]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("ending", ["safetensors", "pth", "pt"])
def test_tensors_have_the_models_own_keys_and_the_state_that_it_is_in(ending: str, tmp_path: Path) -> None:
    model = Net()
    elastic = pof.Elastic(model)
    file = tmp_path / f"net.{ending}"
    with elastic.at(0.8):
        found = pof.export(torch.compile(model) if ending == "pt" else model, file)
        wanted = deepcopy(model.state_dict())
    read = load_file(file) if ending == "safetensors" else torch.load(file, weights_only=True)
    assert same(dict(sorted(read.items())), dict(sorted(wanted.items())))
    assert found == Exported(str(file), file.stat().st_size)
    assert elastic.state == pof.State(0.0, 0.0)


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_graphs_give_the_same_outputs_for_any_batch(ending: str, tmp_path: Path) -> None:
    model, images = Net(), torch.randn(1, 3, 9, 9)
    model.fc.weight.grad = torch.ones_like(model.fc.weight)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    before = snapshot(model)
    file = tmp_path / f"net.{ending}"
    found = pof.export(model, file, images)
    after = snapshot(model)
    assert same(before[0], after[0])
    assert before[1:] == after[1:], "the modes and gradients of the live model stay"
    assert found.free_batch
    assert found.deviation is not None
    assert found.deviation < 1e-5
    assert found.bytes == file.stat().st_size
    model.eval()
    for batch in (1, 2, 7):
        more = torch.randn(batch, 3, 9, 9)
        ours = run_onnx(file, more) if ending == "onnx" else torch.export.load(file).module()(more)
        assert torch.allclose(ours, model(more), atol=1e-5)
    elastic.restore()


def run_onnx(file: Path, *inputs: Tensor) -> Tensor:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    fed = {item.name: value.numpy() for item, value in zip(session.get_inputs(), inputs, strict=True)}
    found: Tensor = torch.from_numpy(session.run(None, fed)[0])
    return found


def test_inputs_may_be_named(tmp_path: Path) -> None:
    model, inputs = Net(), {"images": torch.randn(2, 3, 9, 9), "scale": torch.tensor([2.0, 3.0])}
    assert pof.export(model, tmp_path / "net.onnx", inputs).deviation is not None
    found = run_onnx(tmp_path / "net.onnx", *inputs.values())
    assert torch.allclose(found, model.eval()(**inputs), atol=1e-5)


def test_wrong_calls_say_what_to_do(tmp_path: Path) -> None:
    class Odd(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) if float(inputs.sum()) > 0 else inputs

    for path, example, message in (
        ("net.doc", None, r"must end in \.safetensors or"),
        ("net.onnx", None, "pass example="),
        ("net.onnx", [], "holds no tensor"),
        ("none/net.pth", None, "name a file in a folder that exists"),
    ):
        with pytest.raises(pof.PofError, match=message):
            pof.export(Net(), tmp_path / path, example)
    with pytest.raises(pof.PofError, match="cannot be exported: "):
        pof.export(Odd(3, 3), tmp_path / "odd.pt2", torch.ones(2, 3))
    assert list(tmp_path.iterdir()) == []


def test_a_graph_that_gives_something_else_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pof.runtime.exported_files.TOLERANCE", -1.0)
    with pytest.raises(pof.PofError, match="it is not written"):
        pof.export(Net(), tmp_path / "net.pt2", torch.randn(2, 3, 9, 9))
    assert list(tmp_path.iterdir()) == []


def test_a_url_is_written_to() -> None:
    model = Net()
    pof.export(model, "memory://export/net.safetensors")
    with fsspec.open("memory://export/net.safetensors") as file:
        assert len(file.read()) > 0
    pof.save(model, "memory://export/net.pof")
    other = Net()
    nn.init.zeros_(other.fc.weight)
    pof.load("memory://export/net.pof", into=other)
    assert same(dict(other.state_dict()), dict(model.state_dict()))


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "net.safetensors"
    assert main(["export", str(SHIPPED), str(out), "--sparsity", "0.8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] == out.stat().st_size
    file = pof.open(SHIPPED)
    assert same(dict(sorted(load_file(out).items())), dict(sorted(file.state_dict(0.8).items())))
    onnx = tmp_path / "net.onnx"
    assert main(["export", str(SHIPPED), str(onnx), "--sparsity", "0.8"]) == 0
    assert "batches of any size; outputs within" in capsys.readouterr().out
    model = pof.models.resnet20().eval()
    pof.load(SHIPPED, into=model, sparsity=0.8)
    images = torch.randn(3, 3, 32, 32)
    assert torch.allclose(run_onnx(onnx, images), model(images), atol=1e-4)
    # An exported file is one of weights like any other, and says of which model it is.
    assert main(["export", str(out), str(tmp_path / "net.pth")]) == 0
    assert same(torch.load(tmp_path / "net.pth"), dict(model.state_dict()))


def test_wrong_words_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([str(SHIPPED), str(tmp_path / "net.txt")], "must end in"),
        ([str(tmp_path / "no.pof"), str(tmp_path / "net.pth")], "no.pof"),
        ([str(SHIPPED), str(tmp_path / "net.onnx"), "--size", "0"], "--size 0 must be 1 or more"),
    ):
        assert main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(("missing", "remedy"), [("onnxscript", "pip install onnx onnxscript"), ("safetensors", "pip")])
def test_a_missing_extra_is_named(missing: str, remedy: str, tmp_path: Path) -> None:
    ending = "onnx" if missing == "onnxscript" else "safetensors"
    code = (
        f"import sys, torch; sys.modules[{missing!r}] = None\n"
        "import pof\n"
        f"pof.export(torch.nn.Linear(4, 4), {str(tmp_path / 'net')!r} + '.{ending}', torch.ones(2, 4))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert remedy in done.stderr.splitlines()[-1]


def test_a_model_of_ones_own_without_a_convolution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "import torch.nn as nn\ndef net(num_classes):\n"
    source += "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, num_classes))\n"
    (tmp_path / "own_net.py").write_text(source + "def wrong(classes):\n    return net(classes)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = str(Path(__file__).parents[2] / "recipes" / "digits-pof.toml")
    words = ["--set", "run.epochs=1", "--set", "table.sparsities=[]", "--set", "table.bands=[]", "--out", "run"]
    assert main(["train", recipe, "--model", "own_net:wrong", *words]) == 2
    assert "it may take num_classes, and nothing else" in capsys.readouterr().err
    assert main(["train", recipe, "--model", "own_net:net", *words]) == 0
    assert main(["export", "run", "net.onnx", "--sparsity", "0.5"]) == 0
    assert run_onnx(tmp_path / "net.onnx", torch.randn(3, 1, 8, 8)).shape == (3, 10)


def test_a_comparison_sees_nan_and_other_shapes() -> None:
    same, ones = nn.Identity(), torch.ones(2, 2)
    assert _deviation(same, (ones,), {}, ones + 1e-3) == pytest.approx(1e-3, rel=1e-3)
    for wrong in (torch.full((2, 2), float("nan")), torch.ones(1), torch.ones(2, 3), torch.full((2, 2), float("inf"))):
        assert _deviation(same, (ones,), {}, wrong) == float("inf")
    unbounded = torch.tensor([float("inf"), 1.0])
    assert _deviation(same, (unbounded,), {}, unbounded) == 0.0
    assert _deviation(same, (unbounded,), {}, torch.tensor([5.0, 1.0])) == float("inf")


def test_a_fixed_batch_is_told_from_a_free_one(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(8, 4)

        def forward(self, x: Tensor, t: Tensor) -> Tensor:
            found: Tensor = self.one(x) + t.sum()
            return found

    assert not pof.export(Two(), tmp_path / "a.pt2", (torch.randn(1, 8), torch.randn(5, 2))).free_batch
    assert pof.export(Two(), tmp_path / "b.pt2", (torch.randn(3, 8), torch.randn(5, 2))).free_batch


def test_half_precision_and_what_is_no_model(tmp_path: Path) -> None:
    found = pof.export(nn.Linear(16, 16).half(), tmp_path / "half.onnx", torch.randn(2, 16).half())
    assert found.deviation is not None
    assert found.deviation < 1e-2
    with pytest.raises(pof.PofError, match="then the path"):
        pof.export("half.onnx", nn.Linear(2, 2))  # type: ignore[arg-type]

    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"a": 1}

    with pytest.raises(pof.PofError, match="'_extra_state' of the state_dict is not a plain tensor"):
        pof.export(Extra(2, 2), tmp_path / "extra.pth")
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(pof.PofError, match="not a plain tensor with values"):
        pof.export(empty, tmp_path / "empty.safetensors")
