"""The command that fits our CIFAR-10 network, on a tiny network and images of noise."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import pof
from lab import fit_cifar10
from lab.fit_cifar10 import training_images
from lab.pretrained_tables import PretrainedRecords, pretrained_tables
from pof.data import TensorDataset
from pof.errors import PofError


def tiny() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    ).eval()  # fmt: skip


@pytest.fixture
def noise() -> TensorDataset:
    splits = [(torch.randn(count, 3, 8, 8), torch.randint(0, 10, (count,))) for count in (640, 40)]
    return TensorDataset(splits[0], splits[1], classes=10)


@pytest.fixture
def folder(tmp_path: Path, noise: TensorDataset, monkeypatch: pytest.MonkeyPatch) -> Path:
    pof.save(tiny(), tmp_path / "tiny.pof")
    monkeypatch.setattr(fit_cifar10, "LAB", tmp_path)
    monkeypatch.setitem(fit_cifar10.NETWORKS, "tiny", (tiny, "tiny.pof"))
    monkeypatch.setattr(fit_cifar10, "cifar10", lambda *, augment: noise)
    return tmp_path


@pytest.mark.filterwarnings("ignore")
def test_it_fits_tests_and_goes_on_where_it_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--network", "tiny", "--minutes", "0.01", "--images"]
    assert fit_cifar10.main([*command, "128"]) == 0
    record = folder / "records" / "cifar10-fit" / "tiny.json"
    first = json.loads(record.read_text())
    assert first["tested_on"] == "40 test images"
    assert [len(row) for row in first["top1"].values()] == [9] * 4
    assert len({row[0] for row in list(first["top1"].values())[:3]}) == 1, "whatever prunes leaves the dense network"
    fit = first["fits"]["fitted to 128 images"]["fit"]
    assert fit["inputs"] + fit["held_out"] == 128

    tested: list[int] = []
    real = fit_cifar10.fitted
    monkeypatch.setattr(fit_cifar10, "fitted", lambda *given: (tested.append(given[2]), real(*given))[1])
    assert fit_cifar10.main([*command, "128", "256", "--learn", "0.002"]) == 0
    found = json.loads(record.read_text())
    assert tested == [256], "what is in the record is not done again"
    assert {name: found["top1"][name] for name in first["top1"]} == first["top1"]
    assert "fitted to 256 images" in capsys.readouterr().out
    monkeypatch.setattr(fit_cifar10, "fitted", lambda *given: pytest.fail("all is done"))
    assert fit_cifar10.main([*command, "128", "256", "--learn", "0.002"]) == 0

    row = {"recover_from": 0.5, "sparsity": 0.5, "accuracy": 0.5, "calibrated": 0.9113}
    nested = {"training": {"recipe": {"run": {"epochs": 10}}}, "rows": [row]}
    page = pretrained_tables(PretrainedRecords(cifar10=[{**found, "network": "resnet20"}], nested={"resnet20": nested}))
    assert "### Pretrained, CIFAR-10, ResNet-20" in page
    assert "| `nested` training |  |  | 91.1 |  |" in page
    assert f"| fitted to 256 images | {found['top1']['fitted to 256 images'][0]:.1f} |" in page


def test_fewer_images_are_the_first_of_more(noise: TensorDataset) -> None:
    many = training_images(noise, [70, 600])
    assert len(many) == 600
    assert torch.equal(training_images(noise, [70]), many[:512]), "enough for the statistics"
    with pytest.raises(PofError, match="--images 641 is more than there are"):
        training_images(noise, [641])
    with pytest.raises(PofError, match="--images=0 must be"):
        training_images(noise, [0])


def test_a_record_that_cannot_be_read_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = folder / "broken.json"
    record.write_text("{")
    assert fit_cifar10.main(["--network", "tiny", "--images", "64", "--record", str(record)]) == 2
    assert capsys.readouterr().err.startswith("pof: cannot read the record")
    assert record.read_text() == "{"
