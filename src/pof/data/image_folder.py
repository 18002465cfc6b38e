"""Images in folders, laid out as ImageNet usually is: `root/train/CLASS/*.jpg` and `root/val/CLASS/*.jpg`."""

import importlib.util
import os
from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import data

from pof.checks import check_whole
from pof.data.augment import middle_view, normalise, random_view
from pof.data.batch_order import EpochOrder, Members, check_natural, hold_out, in_order, stream
from pof.errors import PofError, first_line

EXTENSIONS = (".jpg", ".jpeg", ".png")
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Job = tuple[int, tuple[int, int] | None]
"""An image's position in its split, and the seed and epoch of its augmentation, if any."""


class ImageFolder:
    """Images that worker processes read and decode as needed; follows `pof.data.Dataset`.

    Training uses a random part of each image (8 % to 100 % of it, 3:4 to 4:3), at `size` x `size`, mirrored half the
    time; tests use its middle. Images are normalised with ImageNet's mean and standard deviation.

    Args:
        root: the folder that holds `train` and `val`.
        size: the width and height to bring images to.
        workers: how many processes decode, by default one per core and at most 4; 0 decodes in this one. Their number
            does not change the images.

    Raises:
        PofError: a folder is missing or empty, the parts have different classes, or pillow is not installed.
            While iterating: a file cannot be read; the message names it.
    """

    def __init__(self, root: str | Path, *, size: int = 224, workers: int | None = None) -> None:
        check_whole(size, "size", "the width and height of an image in pixels")
        workers = min(4, _cores()) if workers is None else workers
        check_natural(workers, "workers")
        if importlib.util.find_spec("PIL") is None:
            raise PofError("imagefolder needs pillow to decode images: pip install pillow")
        folder = Path(root).expanduser()
        self.class_names = _class_names(folder / "train")
        names = _class_names(folder / "val")
        for name in sorted(set(names) ^ set(self.class_names)):
            there, missing = ("train", "val") if name in self.class_names else ("val", "train")
            raise PofError(f"{folder / missing / name} is missing: {folder / there / name} is a class")
        self._train = _Split(folder / "train", self.class_names, size)
        self._test = _Split(folder / "val", self.class_names, size)
        self._workers = workers
        self.classes = len(self.class_names)
        self.shape = (3, size, size)
        self.train_images, self.test_images = len(self._train), len(self._test)

    def holding_out(self, images: int) -> "ImageFolder":
        """The same dataset, tested on part of its train split; see `Dataset`."""
        rest, held = hold_out(self.train_images, images)
        other = copy(self)
        other._train, other._test = self._train.only(rest), self._train.only(held)
        other.train_images, other.test_images = len(rest), len(held)
        return other

    def train_batches(
        self, batch: int, *, seed: int, epoch: int, start: int = 0, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The shuffled, augmented batches of one epoch; see `Dataset`."""
        batches = EpochOrder(self.train_images, batch, seed, epoch, start, rank, ranks)
        return self._load(self._train, (members for _, members in batches), (seed, epoch))

    def test_batches(self, batch: int, *, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Every test image once, in order; see `Dataset`."""
        return self._load(self._test, in_order(self.test_images, batch, rank, ranks))

    def _load(
        self, split: "_Split", picks: Iterable[Members], augmentation: tuple[int, int] | None = None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        jobs: Iterable[list[Job]] = ([(int(position), augmentation) for position in members] for members in picks)
        # Without its own generator, the loader would draw from, and so advance, torch's global one.
        loader = data.DataLoader(
            split, batch_sampler=jobs, num_workers=self._workers, collate_fn=_join, generator=torch.Generator()
        )
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        for batch in loader:
            if isinstance(batch, str):
                raise PofError(batch)
            images, labels = batch
            yield normalise(images.permute(0, 3, 1, 2), mean, std), labels


class _Split(data.Dataset[tuple[Tensor, int] | str]):
    """The images of one split, as pixels (H, W, 3) with a label, or as a message that says what is wrong.

    It is not an exception, because those arrive from a worker process with a whole traceback as their message.
    """

    def __init__(self, folder: Path, classes: list[str], size: int) -> None:
        self._folder = folder
        self._size = size
        files = [_files(folder / name) for name in classes]
        # Arrays, not lists: counting references to a million objects would copy them into every worker process.
        self._files: npt.NDArray[np.bytes_] = np.array(
            [os.fsencode(f"{name}/{file}") for name, own in zip(classes, files, strict=True) for file in own]
        )
        self._labels = np.repeat(np.arange(len(classes)), [len(own) for own in files])

    def only(self, positions: Members) -> "_Split":
        """The part of the split at these positions."""
        part = copy(self)
        part._files, part._labels = self._files[positions], self._labels[positions]
        return part

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, job: Job) -> tuple[Tensor, int] | str:
        from PIL import Image

        position, augmentation = job
        path = self._folder / os.fsdecode(bytes(self._files[position]))
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except Exception as error:  # decoders raise all kinds of errors for broken files
            return f"{path} cannot be read as an image: {first_line(error)}; replace or remove it"
        if augmentation is None:
            view = middle_view(image, self._size)
        else:
            view = random_view(image, self._size, stream("view", *augmentation, position))
        return torch.from_numpy(np.array(view)), int(self._labels[position])


def _join(items: list[tuple[Tensor, int] | str]) -> tuple[Tensor, Tensor] | str:
    views = []
    for item in items:
        if isinstance(item, str):
            return item
        views.append(item)
    return torch.stack([image for image, _ in views]), torch.tensor([label for _, label in views])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _class_names(folder: Path) -> list[str]:
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    except OSError as error:
        raise PofError(f"{folder} cannot be read ({error.strerror}): it must hold a folder for each class") from error
    if not names:
        raise PofError(f"{folder} is empty: it must hold a folder for each class")
    return names


def _files(folder: Path) -> list[str]:
    files = sorted(entry.name for entry in os.scandir(folder) if entry.name.lower().endswith(EXTENSIONS))
    if not files:
        raise PofError(f"{folder} has no image ({', '.join(EXTENSIONS)}): put some there or remove the folder")
    return files
