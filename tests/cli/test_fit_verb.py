"""`pof fit`: weights and a folder of images in, a .pof file and figures out."""

import json
import re
from pathlib import Path

import pytest
import torch
from PIL import Image

import pof
from pof.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "scripts.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with weights of a ResNet-20 and 24 images."""
    torch.manual_seed(0)
    torch.save(pof.models.resnet20().state_dict(), tmp_path / "model.pth")
    (tmp_path / "images" / "more").mkdir(parents=True)
    for number in range(24):
        pixels = torch.randint(256, (32, 32, 3), dtype=torch.uint8).numpy()
        place = tmp_path / "images" / ("more" if number % 2 else "")
        Image.fromarray(pixels).save(place / f"{number}.png")
    return tmp_path


def words(folder: Path, *more: str) -> list[str]:
    source, images, out = (str(folder / name) for name in ("model.pth", "images", "out.pof"))
    return ["fit", source, "--model", "resnet20", "--images", images, "--out", out, "--size", "32", *more]


@pytest.mark.filterwarnings("ignore:a fit to 24 inputs overfits")
def test_it_writes_a_file_and_prints_what_the_page_lists(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(folder, "--minutes", "0.01", "--json")) == 0
    found = json.loads(capsys.readouterr().out)
    row = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE))["fit"]
    assert list(found) == re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", row))
    assert found["inputs"] == 24
    assert found["bytes"] == (folder / "out.pof").stat().st_size
    assert not (folder / "out.pof.fit").exists(), "what was kept for --resume is gone"
    file = pof.open(folder / "out.pof")
    assert file.metadata == {"model": "resnet20"}
    assert file.head.scope == "global"
    assert file.kept_statistics()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": "nowhere"}, "is no folder"),
        ({"images": "."}, "cannot be read as an image"),
        ({"out": "out.pt"}, "must end in .pof"),
        ({"minutes": "0"}, "minutes=0.0 must be a number above 0"),
    ],
)
def test_mistakes_are_one_line(
    changes: dict[str, str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.png").write_bytes(b"no image")
    extra = [
        word
        for name, value in changes.items()
        for word in (f"--{name}", str(folder / value) if name != "minutes" else value)
    ]
    assert main(words(folder, *extra)) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert says in lines[-1]


def test_a_checkpoint_is_not_overwritten_unasked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out.pof.fit").write_bytes(b"")
    assert main(words(folder)) == 2
    assert "--resume goes on, or delete it" in capsys.readouterr().err
