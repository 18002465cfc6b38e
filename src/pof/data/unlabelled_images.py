"""Images of a folder without labels, for fitting a network to them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pof.checks import check_whole
from pof.data.augment import middle_view, normalise
from pof.data.image_folder import EXTENSIONS, MEAN, STD
from pof.errors import PofError, first_line


class UnlabelledImages:
    """All images below a folder, in batches: their middle, normalised as ImageNet's are.

    Each iteration reads them anew, so that they need no memory.

    Args:
        folder: where they are; folders in it are searched too.
        size: the width and height to bring images to.
        batch: how many images at a time.

    Raises:
        PofError: there is no image. While iterating: a file cannot be read; the message names it.
    """

    def __init__(self, folder: str | Path, *, size: int = 224, batch: int = 32) -> None:
        self._size = check_whole(size, "size", "the width and height of an image in pixels")
        self._batch = check_whole(batch, "batch", "how many images at a time")
        root = Path(folder).expanduser()
        if not root.is_dir():
            raise PofError(f"{str(root)!r} is no folder: name one with images")
        self.files = sorted(path for path in root.rglob("*") if path.suffix.lower() in EXTENSIONS)
        if not self.files:
            raise PofError(f"{str(root)!r} has no images ({', '.join(EXTENSIONS)}): put a few hundred there")

    def __len__(self) -> int:
        return -(-len(self.files) // self._batch)

    def __iter__(self) -> Iterator[Tensor]:
        mean, std = torch.tensor(MEAN), torch.tensor(STD)
        for start in range(0, len(self.files), self._batch):
            pixels = torch.stack([self._read(path) for path in self.files[start : start + self._batch]])
            yield normalise(pixels.permute(0, 3, 1, 2), mean, std)

    def _read(self, path: Path) -> Tensor:
        try:
            from PIL import Image
        except ModuleNotFoundError:
            raise PofError("images need pillow to decode them: pip install pillow") from None
        try:
            with Image.open(path) as file:
                return torch.from_numpy(np.array(middle_view(file.convert("RGB"), self._size)))
        except Exception as error:  # decoders raise all kinds of errors for broken files
            raise PofError(f"{path} cannot be read as an image: {first_line(error)}; replace or remove it") from None
