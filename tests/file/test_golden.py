"""Files of version 1 that were written once: they are read as ever, and written the same.

`python tests/file/test_golden.py` writes them anew, which is right only before version 1 is released.
"""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from file_helpers import ENDS, arithmetic, assert_same, at_states
from torch import Tensor, nn

import pof
from pof.file.header import VERSION
from tests.small_models import bits

GOLDEN = Path(__file__).parent / "golden"
CHOSEN: dict[str, dict[str, Any]] = {
    "version1.pof": {"metadata": {"name": "golden", "text": "ünïcode"}},
    "version1-lossy.pof": {"values": "int8", "magnitudes": "unit", "scope": "global", "stages": (0.8, 0.5)},
}


class Golden(nn.Module):
    """A bit of everything, of numbers that every machine computes alike."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4, bias=False)
        self.bn = nn.BatchNorm1d(4)
        self.fc = nn.Linear(4, 6)
        self.first = nn.Conv2d(1, 2, 3, bias=False)
        self.kernel = nn.Conv2d(4, 5, 3, bias=False)
        self.point = nn.Conv2d(7, 5, 1, bias=False)
        self.up = nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False)
        self.tied = nn.Conv2d(4, 5, 3, bias=False)
        self.tied.weight = self.kernel.weight
        self.filled = nn.Linear(16, 24, bias=False)
        self.short = nn.Linear(9, 5, bias=False)
        self.shorter = nn.Linear(9, 5, bias=False)
        self.register_buffer("steps", torch.tensor([3, -(2**40)]))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("nothing", torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc(torch.relu(self.bn(self.stem(x))))
        return found


def golden() -> nn.Module:
    model = Golden()
    with torch.no_grad():
        for seed, value in enumerate(model.state_dict().values(), start=1):
            if value.is_floating_point():
                value.copy_(arithmetic(tuple(value.shape), seed))
        model.stem.weight.copy_(torch.tensor([[1.0, 2, -1, 0], [0, 1, 1, 2], [-2, 0, 1, 1], [1, -1, 0, 1]]))
        model.bn.running_var.abs_().add_(0.5)
        # Most weights of each row have the same magnitude.
        heights = torch.tensor([1.0, 2.0, 3.0]).repeat(8).reshape(24, 1) / 8
        model.filled.weight.copy_(
            torch.where(model.filled.weight.abs() < 0.4, heights.copysign(model.filled.weight), model.filled.weight)
        )
        model.kernel.weight.view(-1)[:40:7] = 0.0
        model.kernel.weight.view(-1)[3:60:9] = -0.0
    model.short.half()
    model.shorter.bfloat16()
    return model


def batches() -> list[Tensor]:
    """Small whole numbers, so that sums of their products are exact in any order."""
    return [(arithmetic((32, 4), 50 + seed) * 8).round() for seed in range(2)]


def save(model: nn.Module, path: Path, name: str) -> None:
    pof.save(model, path, calibrate=batches(), states=[0.4, 0.6, 0.9, (0.3, 0.9)], **CHOSEN[name])


def same_deflate() -> bool:
    """Whether this zlib finds the same codes as that of the machine that wrote the files."""
    return zlib.crc32(zlib.compress(b"".join(b"%d," % (i * i % 97) for i in range(3000)), 9)) == FINGERPRINT


FINGERPRINT = 0x47E9E2DC


@pytest.mark.usefixtures("_either_core")
@pytest.mark.parametrize("name", list(CHOSEN))
def test_reading_gives_the_expected_tensors(name: str) -> None:
    opened, model = pof.open(GOLDEN / name), golden()
    chosen = {key: value for key, value in CHOSEN[name].items() if key in ("magnitudes", "scope")}
    if name == "version1.pof":
        assert bits(opened.state_dict()) == bits(model)
        assert opened.metadata == {"name": "golden", "text": "ünïcode"}
    else:
        for key, value in opened.state_dict().items():
            torch.testing.assert_close(value.double(), model.state_dict()[key].double(), rtol=0.0, atol=0.008)
        pof.load(GOLDEN / name, into=model)
    statistics = ("bn.running_mean", "bn.running_var")
    for ends, expected in at_states(model, ENDS, **chosen):
        found = opened.state_dict(*ends)
        assert_same(*({k: v for k, v in tensors.items() if k not in statistics} for tensors in (found, expected)))


@pytest.mark.parametrize("name", list(CHOSEN))
def test_the_statistics_are_as_they_were(name: str) -> None:
    opened, model = pof.open(GOLDEN / name), golden()
    pof.load(GOLDEN / name, into=model)
    dense = {key: value.clone() for key, value in model.bn.state_dict().items()}
    elastic = pof.Elastic(model, **{k: v for k, v in CHOSEN[name].items() if k in ("magnitudes", "scope")})
    for ends in ((0.4, None), (0.6, None), (0.9, None), (0.9, 0.3)):
        with elastic.at(*ends):
            elastic.calibrate(batches())
            found = opened.state_dict(*ends)
            spread = (dense["running_var"] + 1e-5).sqrt()
            assert bool(((found["bn.running_mean"] - model.bn.running_mean).abs() <= spread * 0.51 / 64).all())
            torch.testing.assert_close(found["bn.running_var"], model.bn.running_var, rtol=0.012, atol=1e-5)


@pytest.mark.usefixtures("_either_core")
@pytest.mark.parametrize("name", list(CHOSEN))
def test_writing_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    if not same_deflate():
        pytest.skip("another zlib, which finds other codes")
    save(golden(), written := tmp_path / name, name)
    assert written.read_bytes() == (GOLDEN / name).read_bytes()


def test_they_are_small_and_of_this_version() -> None:
    assert VERSION == 1
    for name in CHOSEN:
        assert (GOLDEN / name).stat().st_size < 6000


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for each in CHOSEN:
        save(golden(), GOLDEN / each, each)
