"""`pof compile`: from a file to a table."""

import json
from pathlib import Path

import pytest
import torch

import pof
from pof.cli.main import main
from pof.core.library import core

pytestmark = pytest.mark.skipif(core() is None, reason="the core was not built")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.pof"
    pof.save(pof.models.resnet20().eval(), path, metadata={"model": "resnet20", "data": "cifar10"})
    return path


def test_a_file_at_a_sparsity(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(file), "--sparsity", "0.8", "--bench"]) == 0
    out = capsys.readouterr().out
    assert "layer3.2.conv2" in out
    assert "80%" in out
    assert "x as fast" in out
    assert main(["compile", str(file), "--sparsity", "0.8", "--recover-from", "0.3", "--batch", "2"]) == 0
    assert "A filled band is not zero" in capsys.readouterr().out
    assert main(["compile", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speedup"] >= 1.0
    assert found["layers"][0]["shape"] == [1, 16, 32, 32]


def test_mistakes(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compile", str(tmp_path / "none.pof")]) == 2
    assert "there is no" in capsys.readouterr().err
    assert main(["compile", str(file), "--batch", "0"]) == 2
    assert "must be 1 or more" in capsys.readouterr().err
    bare = tmp_path / "bare.pof"
    pof.save(pof.models.resnet20(), bare)
    assert main(["compile", str(bare)]) == 2
    assert "pass --model" in capsys.readouterr().err
    assert main(["compile", str(bare), "--model", "resnet20", "--size", "32"]) == 0
