"""The whole method on the digits, in seconds: train, fine-tune with and without pof, prune, recover, compare.

example: python -m lab.digits_demo --plot digits.png
"""

import argparse
import copy
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from lab.command_line import run_command
from lab.plots import SUFFIXES, Curve, can_plot, plot_accuracy
from pof.data.digit_images import digits
from pof.elastic.elastic_model import Elastic
from pof.errors import PofError
from pof.file.atomic_write import check_target
from pof.models.digit_networks import digits_convnet
from pof.ranking.sparsity_state import Magnitudes
from pof.sphere.attachment import attach
from pof.terminal.progress_bars import Bars
from pof.terminal.text_table import text_table

PLOT = "pof-digits.png"
Progress = Callable[[str, int, int], None]
"""Called with a task, the number of its steps done so far, and their total."""


@dataclass(frozen=True)
class DemoSettings:
    """What the demo does; both fine-tunings make the same steps on the same batches."""

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
    """Accuracy, from 0 to 1, of a network at a sparsity: pruned, with the band filled, and with new statistics."""

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
        """Return the figures for JSON, with the versions that made them."""
        return {**asdict(self), "versions": {"pof": pof.__version__, "torch": str(torch.__version__)}}

    def curve(self, network: str, column: str) -> list[tuple[float, float]]:
        """Return the points (sparsity, accuracy) of one curve in the plot."""
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
            # The other ranking too, so that neither network is shown only with the one that suits it less.
            other: Magnitudes = "raw" if magnitudes == "unit" else "unit"
            rows += _measure(f"{name}, {other}", Elastic(model, magnitudes=other), model, train[0], test, settings)
    return DemoResult(settings, len(test[1]), tuple(rows))


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one thread: batches of 8 x 8 images are so small that several would mostly wait for each other."""
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--plot", metavar="FILE", help=f"where to draw the plot ({PLOT})")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Run the demo and show its results."""
    if options.json and options.plot:
        raise PofError("--json prints figures and draws nothing: leave --plot out")
    plot = check_target(options.plot or PLOT, SUFFIXES)
    if options.json:
        print(json.dumps(run_demo().as_dict(), indent=2))
        return 0
    with Bars() as bars:
        result = run_demo(progress=bars.update)
    print_table(result)
    print(f"Pruned, nothing trained afterwards; accuracy on {result.test_images} test images.")
    print("+band:  30 % are zero; from there up to the ratio, alpha*sign(w) is filled in")
    print("+stats: BatchNorm statistics re-estimated from training images, no labels")
    print(f"Plot: {draw(result, str(plot))}" if can_plot() else "No plot: to draw one, pip install matplotlib")
    return 0


def print_table(result: DemoResult) -> None:
    """Print one row per sparsity, with both networks side by side."""
    networks = [[row for row in result.rows if row.network == name] for name in ("plain", "pof")]
    rows = []
    for plain, ours in zip(*networks, strict=True):
        figures = (plain.pruned, plain.recovered, plain.calibrated, ours.pruned, ours.recovered, ours.calibrated)
        rows.append((f"{plain.sparsity:.0%}", *(f"{100 * figure:.1f}" for figure in figures)))
    header = ("ratio", "plain", "plain +band", "plain +stats", "pof", "pof +band", "pof +stats")
    print("Test accuracy, % (plain fine-tuning against pof)")
    print(text_table(header, rows, right=True))


def draw(result: DemoResult, path: str) -> str:
    """Plot the four curves; return the path of the picture."""
    curves = {
        "pof, pruned": Curve(result.curve("pof", "pruned"), "tab:blue"),
        "pof, 30 % pruned, the rest of the ratio filled": Curve(result.curve("pof", "recovered"), "tab:blue", True),
        "plain, pruned": Curve(result.curve("plain", "pruned"), "tab:orange"),
        "plain, 30 % pruned, the rest filled": Curve(result.curve("plain", "recovered"), "tab:orange", True),
    }
    return str(plot_accuracy(curves, "Digits: pruned without retraining", path))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it from the command line."""
    return run_command("digits_demo", __doc__, add_arguments, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
