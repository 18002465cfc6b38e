"""The whole method on the digits, in seconds: train, fine-tune with and without pof, prune, recover, compare."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.data.digits import digits
from pof.elastic import Elastic
from pof.models.digits_convnet import digits_convnet
from pof.on_the_fly import attach
from pof.states import Magnitudes

Progress = Callable[[str, int, int], None]
"""Told what is being done, how many steps of it are done, and how many there are."""


@dataclass(frozen=True)
class DemoSettings:
    """What the demo does; both fine-tunings take the same steps on the same batches."""

    epochs: int = 8
    learning_rate: float = 0.1
    fine_tune_epochs: int = 8
    fine_tune_learning_rate: float = 0.02
    tr: tuple[float, float] = (0.9, 0.7)
    weight: float = 0.3
    batch: int = 64
    seed: int = 0
    sparsities: tuple[float, ...] = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
    recover_from: float = 0.3


@dataclass(frozen=True)
class DemoRow:
    """Accuracy (of 1) of one network at one sparsity: pruned, with the band filled, and pruned with new statistics."""

    network: str
    sparsity: float
    pruned: float
    recovered: float
    calibrated: float


@dataclass(frozen=True)
class DemoResult:
    """Everything that the demo measured."""

    settings: DemoSettings
    test_images: int
    rows: tuple[DemoRow, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON, with the versions that made it."""
        return {**asdict(self), "versions": {"pof": pof.__version__, "torch": str(torch.__version__)}}

    def curve(self, network: str, column: str) -> list[tuple[float, float]]:
        """Points (sparsity, accuracy) of one line of the plot."""
        return [(row.sparsity, getattr(row, column)) for row in self.rows if row.network == network]


def run_demo(settings: DemoSettings | None = None, progress: Progress = lambda *_: None) -> DemoResult:
    """Train a network, fine-tune one copy plainly and one with `pof.attach`, and measure both at every sparsity."""
    settings = settings or DemoSettings()
    train, test = digits("train"), digits("test")
    with torch.random.fork_rng(devices=[]), _one_thread():
        torch.manual_seed(settings.seed)
        network = digits_convnet()
        _train(network, train, settings, "training", progress)
        tuned: dict[str, tuple[nn.Module, Magnitudes]] = {
            "plain": (copy.deepcopy(network), "raw"),
            "pof": (network, "unit"),
        }
        rows: list[DemoRow] = []
        for name, (model, magnitudes) in tuned.items():
            torch.manual_seed(settings.seed + 1)
            _train(model, train, settings, f"fine-tuning, {name}", progress, fine_tune=True, penalty=name == "pof")
            rows += _measure(name, Elastic(model, magnitudes=magnitudes), model, train[0], test, settings)
            # The other ranking too, for the record: neither network is shown at its weaker one alone.
            other: Magnitudes = "raw" if magnitudes == "unit" else "unit"
            rows += _measure(f"{name}, {other}", Elastic(model, magnitudes=other), model, train[0], test, settings)
    return DemoResult(settings, len(test[1]), tuple(rows))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Batches of 8 x 8 images are too small to share: threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    settings: DemoSettings,
    title: str,
    progress: Progress,
    *,
    fine_tune: bool = False,
    penalty: bool = False,
) -> None:
    images, labels = data
    epochs = settings.fine_tune_epochs if fine_tune else settings.epochs
    rate = settings.fine_tune_learning_rate if fine_tune else settings.learning_rate
    steps = epochs * (len(images) // settings.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    if penalty:
        attach(model, optimizer, tr=settings.tr, steps=steps, weight=settings.weight)
    model.train()
    done = 0
    for _ in range(epochs):
        order = torch.randperm(len(images))
        for batch in order.split(settings.batch)[: len(images) // settings.batch]:
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
            done += 1
            progress(title, done, steps)
    model.eval()


def _measure(
    name: str,
    elastic: Elastic,
    model: nn.Module,
    calibration: Tensor,
    test: tuple[Tensor, Tensor],
    settings: DemoSettings,
) -> list[DemoRow]:
    rows = []
    for sparsity in settings.sparsities:
        with elastic.at(sparsity, recover_from=min(settings.recover_from, sparsity)):
            recovered = _accuracy(model, test)
        with elastic.at(sparsity):
            pruned = _accuracy(model, test)
            elastic.calibrate([calibration])
            calibrated = _accuracy(model, test)
        elastic.restore()
        rows.append(DemoRow(name, sparsity, pruned, recovered, calibrated))
    return rows


@torch.no_grad()
def _accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    images, labels = test
    return float((model(images).argmax(1) == labels).float().mean())
