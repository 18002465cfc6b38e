"""Small networks that several test files use, inputs for them, and how to compare what they store bit by bit.

`tests/conftest.py` seeds torch before every test, so two networks made in the same order have the same weights; those
that must come out alike at every call set the seed themselves. A network that only one file needs stays in that file.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def bits(tensors: nn.Module | Mapping[str, Tensor]) -> dict[str, bytes]:
    """Everything that a model or a state_dict holds, byte by byte, with types and shapes."""
    if isinstance(tensors, nn.Module):
        tensors = tensors.state_dict()
    return {
        name: f"{value.dtype} {tuple(value.shape)} ".encode()
        + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in tensors.items()
    }


def assert_bit_equal(left: nn.Module | Mapping[str, Tensor], right: nn.Module | Mapping[str, Tensor]) -> None:
    """Two models, or two state_dicts, hold the same tensors; an error names those that differ."""
    found, wanted = (each.state_dict() if isinstance(each, nn.Module) else each for each in (left, right))
    assert found.keys() == wanted.keys(), f"{list(found)} are not {list(wanted)}"
    unequal = [name for name, value in found.items() if not torch.equal(value, wanted[name])]
    assert not unequal, f"these differ: {unequal}"


# --- networks with a plan ----------------------------------------------------------------------------------------

PLANNED = ("depthwise.weight", "up.weight", "fc.weight")
"""What the plans of `MixedNet` and `DropoutNet` name, in this order."""


class MixedNet(nn.Module):
    """Every kind of layer that matters, in the order in which a plan meets them; `stem` is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(torch.relu(self.bn(self.stem(x))))
        logits: Tensor = self.fc(self.up(x).mean((2, 3)))
        return logits


def planned(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights that `MixedNet`'s plan names."""
    return {f"{name}.weight": getattr(model, name).weight.detach().clone() for name in ("depthwise", "up", "fc")}


class DropoutNet(nn.Module):
    """Like `MixedNet`, for gradients: a ReLU more, and dropout where asked for; `stem` is left out of the plan."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.up = nn.ConvTranspose2d(6, 8, 2, stride=2, groups=2)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.depthwise(torch.relu(self.bn(self.stem(x)))))
        logits: Tensor = self.fc(self.drop(self.up(x).mean((2, 3))))
        return logits


def images_and_labels() -> tuple[Tensor, Tensor]:
    """A batch for `DropoutNet`."""
    return torch.randn(6, 1, 5, 5), torch.randint(5, (6,))


class TwoNormNet(nn.Module):
    """Two planned weights, `conv` and `fc`, and two BatchNorms: what others may change under a live Elastic."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.stem(x)))
        logits: Tensor = self.fc(self.bn2(self.conv(x)).mean((2, 3)))
        return logits


def four_images() -> Tensor:
    """A batch for `TwoNormNet`."""
    return torch.randn(4, 1, 5, 5)


class AnyNormNet(nn.Module):
    """Norms of a kind that is given, for calibration; dropout shows whether it was off; `stem` is not planned."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.bn1 = norm(4)
        self.drop = nn.Dropout(0.5)
        self.conv = nn.Conv2d(4, 6, 3)
        self.bn2 = norm(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        x = self.drop(torch.relu(self.bn1(self.stem(x))))
        logits: Tensor = self.fc(self.bn2(self.conv(x)).mean((2, 3))) * scale
        return logits


def image_batches(count: int = 3, batch: int = 5) -> list[Tensor]:
    """Batches for `AnyNormNet`, each of another variance."""
    return [2.0 + torch.randn(batch, 1, 6, 6) * (1 + number) for number in range(count)]


class Convnet(nn.Module):
    """stem (the first convolution), two blocks, a classifier: names for globs to match."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1))
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 3))
        self.fc = nn.Linear(6, 5)


class LanguageModel(nn.Module):
    """`lm_head` is tied to the embedding, so only `body` can be pruned."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.body = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 10, bias=False)
        self.lm_head.weight = self.embedding.weight


# --- networks to train with the penalty, the same at every call --------------------------------------------------


def tanh_convnet() -> nn.Sequential:
    """Smooth and in float64, so that two ways to train it agree to many digits and no mask differs by rounding."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.Tanh(),
        nn.ConvTranspose2d(6, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, 3),
    ).double()


def grouped_convnet(dtype: torch.dtype = torch.float32, *, channels_last: bool = False) -> nn.Sequential:
    """Rows of every kind: of a transposed convolution in groups, of plain and depthwise ones, of a linear layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ConvTranspose2d(4, 6, 3, groups=2),
        nn.Conv2d(6, 8, 3),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Flatten(),
        nn.Linear(8, 10),
    ).to(dtype)
    return model.to(memory_format=torch.channels_last) if channels_last else model


# --- networks to save --------------------------------------------------------------------------------------------


class Kinds(nn.Module):
    """Every kind of layer that a file stores; `stem` is not pruned, and `again` is `head` under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3)
        self.bn = nn.BatchNorm2d(4)
        self.kernel = nn.Conv2d(4, 8, 3, bias=False)
        self.point = nn.Conv2d(8, 12, 1)
        self.wide = nn.Conv2d(3, 2, 5)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8)
        self.up = nn.ConvTranspose2d(8, 6, 2, groups=2)
        self.up_kernel = nn.ConvTranspose2d(4, 6, 3)
        self.line = nn.Conv1d(5, 7, 3)
        self.head = nn.Linear(13, 11)
        self.again = nn.Linear(13, 11)
        self.again.weight = self.head.weight


class FewBytes(nn.Module):
    """A file of this has less than two kilobytes, so a test can break every byte of it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1, bias=False)
        self.bn = nn.BatchNorm2d(2)
        self.kernel = nn.Conv2d(2, 4, 3, bias=False)
        self.fc = nn.Linear(7, 5)
        self.register_buffer("flag", torch.tensor([True, False]))


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """`model` with random weights, ties and zeros of both signs among them, and statistics that differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.state_dict().values():
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator)
            if value.dim() < 2:
                value.copy_(noise.abs() + 0.1)
                continue
            kind = torch.rand(value.shape, generator=generator)
            noise = torch.where(kind < 0.2, (noise * 4).round() / 4, noise)
            noise = torch.where(kind > 0.97, torch.zeros_like(noise).copysign(noise), noise)
            value.copy_(noise)
    return model
