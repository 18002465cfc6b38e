"""The command that fits networks with public weights, on a tiny network and an archive of noise."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

import pof
from lab import fit_imagenet, pretrained_networks
from lab.pretrained_networks import PretrainedNetwork, read_images
from lab.state_rows import LEARNING, STATES


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w") as files:
        for part, count in (("calibrate", 160), ("validate", 12)):
            for number in range(count):
                picture = io.BytesIO()
                Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(picture, "jpeg")
                files.writestr(f"{part}/{number:04}.jpg", picture.getvalue())
    return path


def tiny(weights: Path | None) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 20),
    ).eval()  # fmt: skip


@pytest.mark.filterwarnings("ignore")
def test_it_fits_tests_and_writes_a_record(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    network = PretrainedNetwork(tiny, (2, 1, 0), (100.0, 110.0, 120.0), (1.0, 2.0, 4.0), "made up")
    monkeypatch.setitem(pretrained_networks.NETWORKS, "tiny", network)
    record, file = tmp_path / "records" / "tiny.json", tmp_path / "tiny.pof"
    command = ["tiny", "--images", str(archive), "--minutes", "0.01", "--record", str(record), "--out", str(file)]
    assert fit_imagenet.main([*command, "--baselines"]) == 0
    assert "fitted" not in json.loads(record.read_text())["top1"]
    assert fit_imagenet.main([*command, "--learn", "0.002"]) == 0
    found = json.loads(record.read_text())
    assert found["tested_on"] == "12 images of validate"
    assert list(found["top1"])[-2:] == ["fitted", "fitted, statistics learnt for 0.002 min each"]
    learnt = found["top1"].pop("fitted, statistics learnt for 0.002 min each")
    assert [figure is None for figure in learnt] == [state not in LEARNING for state in STATES]
    assert all(len(row) == len(found["states"]) for row in found["top1"].values())
    assert len({row[0] for row in list(found["top1"].values())[:-1]}) == 1, "whatever prunes leaves the dense network"
    assert list(found["bytes_read"]) == ["as it came", "fitted"]
    assert found["bytes_read"]["fitted"][0] <= file.stat().st_size
    assert found["bytes_read"]["fitted"][6] < found["bytes_read"]["fitted"][0]
    assert pof.open(file).state_dict(0.9)["3.weight"].count_nonzero() < 8 * 16 * 9
    assert "fitted" in capsys.readouterr().out


def test_images_are_ordered_by_name_and_inputs_by_channel(archive: Path) -> None:
    pixels, classes = read_images(archive, "validate")
    assert pixels.shape == (12, 3, 16, 16)
    assert classes.tolist() == list(range(12))
    network = PretrainedNetwork(tiny, (2, 1, 0), (100.0, 110.0, 120.0), (1.0, 2.0, 4.0), "made up")
    assert float(network.inputs(pixels)[0, 0, 0, 0]) == float(pixels[0, 2, 0, 0]) - 100
    assert float(network.inputs(pixels)[0, 2, 0, 0]) == (float(pixels[0, 0, 0, 0]) - 120) / 4
