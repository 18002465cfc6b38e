"""What comes with the package: a sample of CIFAR-10, two networks, and the demo that shows them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import pof
from pof.cli.main import main
from pof.data import shipped
from pof.errors import PofError
from pof.report.cifar10_demo import DemoResult, run_demo


def test_images_are_packed_without_loss() -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (7, 3, 32, 32)).astype(np.uint8)
    labels = random.integers(0, 10, 7).astype(np.uint8)
    found = shipped.unpack_images(shipped.pack_images(images, labels))
    assert np.array_equal(found[0], images)
    assert np.array_equal(found[1], labels)


def test_the_sample() -> None:
    images, labels = shipped.cifar10_sample()
    assert images.shape == (2000, 3, 32, 32)
    assert labels.bincount().min() > 150
    assert abs(float(images.mean())) < 0.1
    assert float(images.std()) == pytest.approx(1.0, abs=0.05)


def test_the_networks_are_small_and_good() -> None:
    images, labels = shipped.cifar10_sample()
    for name in shipped.NETWORKS:
        file = shipped.network(name)
        assert file.stat().st_size < 1_000_000
        model = pof.models.resnet20().eval()
        pof.load(file, into=model)
        with torch.no_grad():
            right = (model(images[:500]).argmax(1) == labels[:500]).float().mean()
        assert float(right) > 0.87
    with pytest.raises(PofError, match="cifar10-resnet20-nested"):
        shipped.network("other")


@pytest.fixture(scope="module")
def result() -> DemoResult:
    """The demo at one sparsity: measuring speed takes long."""
    return run_demo(sparsities=(0.9,))


def test_nested_holds_where_plain_pruning_falls(result: DemoResult) -> None:
    (row,) = result.rows
    assert row.pruned > row.plain + 0.2
    assert row.recovered is not None
    assert row.recovered > row.pruned
    assert row.recovered_bytes is not None
    assert row.bytes < row.recovered_bytes < result.file_bytes / 2
    assert [page["name"] for page in result.pages] == ["nested", "plain"]


def test_the_command(
    result: DemoResult, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pof.report.cifar10_demo.run_demo", lambda *_: result)
    page = tmp_path / "page.html"
    assert main(["demo", "--page", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "90%" in printed
    assert f"Page with sliders: {page}" in printed
    assert "one file, every size" in page.read_text()
    assert max(len(line) for line in printed.splitlines() if str(page) not in line) <= 80
    assert main(["demo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["test_images"] == 2000
    for wrong in (["--json", "--page", "x"],):
        assert main(["demo", *wrong]) == 2
