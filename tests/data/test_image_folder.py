import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from pof.data import DATASETS, ImageFolder
from pof.data.augment import RATIO, centred_box, middle_view, random_box, random_view
from pof.data.batch_order import stream
from pof.data.image_folder import MEAN, STD
from pof.errors import PofError

# Torch says so where a test asks for more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

COLOURS = {"ant": (200, 0, 0), "bee": (0, 200, 0), "cat": (0, 0, 200)}


def picture(name: str, width: int = 40, height: int = 30) -> Image.Image:
    """The colour of a class, with noise."""
    noise = np.random.RandomState(width).randint(0, 50, (height, width, 3))
    return Image.fromarray((np.array(COLOURS[name]) + noise).astype(np.uint8))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes, with 8 images each to train on and 3 to test on, of several sizes and formats."""
    for part, number in (("train", 8), ("val", 3)):
        for name in COLOURS:
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for i in range(number):
                extension = ("jpg", "JPEG", "png")[i % 3]
                picture(name, 40 + i, 60 - 5 * i).save(folder / f"{i}.{extension}")
            (folder / "readme.txt").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "train" / "list.txt").write_text("no class")
    return tmp_path


def all_of(data: ImageFolder, **settings: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(data.train_batches(6, **{"seed": 0, "epoch": 0, **settings}))


def test_what_it_holds(root: Path) -> None:
    data = DATASETS["imagefolder"](root=str(root), size=16)
    assert isinstance(data, ImageFolder)
    assert (data.classes, data.shape, data.train_images, data.test_images) == (3, (3, 16, 16), 24, 9)
    assert data.class_names == ["ant", "bee", "cat"]
    labels = torch.cat([labels for _, labels in data.test_batches(4)])
    assert labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    for images, labels in (*all_of(data), *data.test_batches(6)):
        assert (images.dtype, labels.dtype, images.is_contiguous()) == (torch.float32, torch.int64, True)
        pixels = images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
        assert pixels.mean((2, 3)).argmax(1).tolist() == labels.tolist(), "a class has the channel of its number"


def test_images_held_out_keep_their_labels(root: Path) -> None:
    data = ImageFolder(root, size=16, workers=0)
    part = data.holding_out(10)
    assert (part.train_images, part.test_images, data.train_images, data.test_images) == (14, 10, 24, 9)
    seen = []
    for images, labels in (*part.train_batches(7, seed=0, epoch=0), *part.test_batches(4)):
        pixels = images * torch.tensor(STD)[:, None, None] + torch.tensor(MEAN)[:, None, None]
        assert pixels.mean((2, 3)).argmax(1).tolist() == labels.tolist()
        seen += labels.tolist()
    assert sorted(seen) == [0] * 8 + [1] * 8 + [2] * 8
    with pytest.raises(PofError, match="hold_out=24 must be less than 24"):
        data.holding_out(24)


def test_test_images_are_the_middle(root: Path) -> None:
    data = ImageFolder(root, size=16, workers=0)
    images, _ = next(data.test_batches(9))
    with Image.open(root / "val" / "ant" / "2.png") as file:
        view = np.array(middle_view(file.convert("RGB"), 16))
    expected = (torch.from_numpy(view).permute(2, 0, 1) / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[
        :, None, None
    ]
    torch.testing.assert_close(images[2], expected)


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_change_nothing(root: Path, workers: int) -> None:
    alone, shared = ImageFolder(root, size=16, workers=0), ImageFolder(root, size=16, workers=workers)
    torch.manual_seed(5)
    batches = all_of(shared, epoch=2)
    assert torch.equal(torch.rand(2), torch.rand(2, generator=torch.Generator().manual_seed(5)))
    for (images, labels), (expected, expected_labels) in zip(batches, all_of(alone, epoch=2), strict=True):
        assert torch.equal(images, expected)
        assert torch.equal(labels, expected_labels)


def test_resume_ranks_epochs_and_seeds(root: Path) -> None:
    data = ImageFolder(root, size=16, workers=0)
    whole = all_of(data)
    assert len(whole) == 4
    resumed = [all_of(data, start=2, rank=rank, ranks=2) for rank in range(2)]
    for (images, labels), *parts in zip(whole[2:], *resumed, strict=True):
        assert torch.equal(torch.cat([part[0] for part in parts]), images)
        assert torch.equal(torch.cat([part[1] for part in parts]), labels)
    assert not torch.equal(all_of(data, epoch=1)[0][0], whole[0][0])
    assert not torch.equal(all_of(data, seed=1)[0][0], whole[0][0])
    test = [torch.cat([x for x, _ in data.test_batches(4, rank=rank, ranks=2)]) for rank in range(2)]
    assert torch.equal(torch.cat(test), torch.cat([x for x, _ in data.test_batches(4)]))


def test_a_loop_that_stops_early_leaves_no_workers(root: Path) -> None:
    import multiprocessing

    batches = ImageFolder(root, size=16, workers=2).train_batches(6, seed=0, epoch=0)
    next(batches)
    assert len(multiprocessing.active_children()) == 2
    del batches
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "gone", "broken png"])
def test_a_corrupt_image_is_one_line_that_names_it(root: Path, workers: int, damage: str) -> None:
    path = root / "train" / "bee" / ("2.png" if damage == "broken png" else "1.JPEG")
    data = ImageFolder(root, size=16, workers=workers)
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        broken = content[:60] + bytes(20) + content[80:]
        path.write_bytes(
            {"empty": b"", "text": b"text", "truncated": content[: len(content) // 2], "broken png": broken}[damage]
        )
    with pytest.raises(PofError) as caught:
        all_of(data)
    assert str(caught.value).startswith(f"{path} cannot be read as an image")
    assert "\n" not in str(caught.value)


def test_missing_and_empty_folders(root: Path, tmp_path: Path) -> None:
    def message() -> str:
        with pytest.raises(PofError) as caught:
            ImageFolder(root, size=16)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (root / "val" / "dog").mkdir()
    assert message() == f"{root}/train/dog is missing: {root}/val/dog is a class"
    (root / "val" / "dog").rename(root / "train" / "dog")
    assert message() == f"{root}/val/dog is missing: {root}/train/dog is a class"
    (root / "val" / "dog").mkdir()
    assert message().startswith(f"{root}/train/dog has no image (.jpg, .jpeg, .png)")
    (root / "val").rename(root / "test")
    assert message().startswith(f"{root}/val cannot be read (No such file or directory)")
    (root / "val").mkdir()
    assert message().startswith(f"{root}/val is empty")


def test_bad_settings(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PofError, match="size=0"):
        ImageFolder(root, size=0)
    with pytest.raises(PofError, match="workers=-1"):
        ImageFolder(root, workers=-1)
    with pytest.raises(PofError, match="batch=25 must be at most 24"):
        ImageFolder(root, size=16, workers=0).train_batches(25, seed=0, epoch=0)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(PofError, match=r"pip install pillow"):
        ImageFolder(root)


def test_random_boxes_are_of_the_permitted_shapes() -> None:
    draws = stream("boxes")
    for width, height in ((500, 375), (100, 100), (300, 640)):
        boxes = np.array([random_box(width, height, draws) for _ in range(2000)])
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, 2:] <= (width, height)).all()
        across, down = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
        ratios, shares = across / down, across * down / (width * height)
        assert 0.72 < ratios.min() < 0.78
        assert 1.28 < ratios.max() < 1.38
        assert 0.07 < shares.min() < 0.09
        assert shares.max() <= 1
        assert boxes[:, 0].min() == boxes[:, 1].min() == 0


@pytest.mark.parametrize(("size", "box"), [((1000, 10), (494, 0, 507, 10)), ((10, 1000), (0, 494, 10, 507))])
def test_where_no_box_fits_it_is_the_largest_in_the_middle(size: tuple[int, int], box: tuple[int, ...]) -> None:
    assert random_box(*size, stream(0)) == box
    across, down = box[2] - box[0], box[3] - box[1]
    assert RATIO[0] - 0.05 < across / down < RATIO[1] + 0.05


def test_views() -> None:
    image = picture("ant", 50, 40)
    assert centred_box(50, 40, 20, 10) == (15, 15, 35, 25)
    assert middle_view(image, 224).size == (224, 224)
    views = [np.array(random_view(image, 12, stream("view", i))) for i in range(20)]
    assert all(view.shape == (12, 12, 3) for view in views)
    ramp = Image.fromarray(np.tile(np.arange(0, 250, 5, dtype=np.uint8), (40, 1)))
    rising = [
        bool(np.diff(np.array(random_view(ramp, 12, stream("view", i))).astype(int)[0]).sum() > 0) for i in range(200)
    ]
    assert 70 < sum(rising) < 130, "half of them are mirrored"
