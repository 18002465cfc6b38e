"""What states are tested with."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pof
from pof.cli.main import main
from pof.data.digit_images import digits
from pof.data.tensor_dataset import TensorDataset
from pof.file.pof_file import PofFile
from pof.trainer.accuracy_sweep import BATCH, CALIBRATION_IMAGES, calibration_batches


def images(count: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, 6, 6, generator=torch.Generator().manual_seed(count)), torch.arange(count) % 2


def test_statistics_come_from_augmented_training_images() -> None:
    train = images(4000)
    data = TensorDataset(train, images(10), classes=2, padding=2, flip=True)
    drawn = torch.cat(list(calibration_batches(data)))
    assert len(drawn) == CALIBRATION_IMAGES
    assert drawn.is_contiguous(memory_format=torch.channels_last)
    seen = {tuple(image.flatten().tolist()) for image in train[0]}
    as_they_are = sum(tuple(image.flatten().tolist()) in seen for image in drawn)
    assert 0 < as_they_are < CALIBRATION_IMAGES / 10, "1 of 25 crops moves nothing, half of them flipped"
    again = torch.cat(list(calibration_batches(data)))
    assert torch.equal(drawn, again), "the same images for every state"


def test_a_small_set_is_used_whole() -> None:
    data = TensorDataset(images(BATCH - 1), images(10), classes=2)
    assert [len(batch) for batch in calibration_batches(data)] == [BATCH - 1]


def test_a_file_is_tested_with_its_own_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = pof.models.digits_convnet()
    digit_images, labels = digits("train")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        for x, y in zip(digit_images.split(64), labels.split(64), strict=True):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    file, facts = tmp_path / "m.pof", {"model": "digits_convnet", "data": "digits"}
    pof.save(model.eval(), file, calibrate=digit_images.split(256), metadata=facts)
    assert len(PofFile(file).kept_statistics()) > 40
    test_images, test_labels = digits("test")
    assert main(["sweep", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["statistics"] == "file"
    for row in found["rows"]:
        if row["sparsity"] != row["recover_from"] or not row["sparsity"]:
            continue
        pof.load(file, into=model, sparsity=row["sparsity"])
        with torch.no_grad():
            right = float((model(test_images).argmax(1) == test_labels).float().mean())
        assert row["calibrated"] == pytest.approx(right, abs=1e-6)
        assert row["zeros"] == pytest.approx(row["sparsity"], abs=0.01)
    assert main(["sweep", str(file), "--scope", "global", "--json", "--sparsities", "0.5", "--bands", "0.3-0.7"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["statistics"] == "estimated"
    assert [(row["recover_from"], row["sparsity"]) for row in found["rows"]] == [(0.5, 0.5), (0.3, 0.7)]
    assert main(["sweep", str(file), "--bands", "0.3"]) == 2
    assert main(["sweep", str(file), "--sparsities"]) == 2
    assert PofFile(_plain(model, tmp_path / "plain.pof")).kept_statistics() == []


def _plain(model: torch.nn.Module, path: Path) -> Path:
    pof.save(model, path)
    return path
