"""Fit our dense CIFAR-10 network to unlabelled training images, and test it at every size.

The images are as the network is given them when it is tested: normalised, not
augmented. Each row is tested on all 10,000 test images. The record is written
after each row, so that a run that was stopped goes on with the next one.

example: python -m lab.fit_cifar10 --images 512 2048 --minutes 10
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

import pof
from lab.command_line import LAB, run_command
from lab.experiments import BASELINE
from lab.state_rows import (
    STATES,
    UNFITTED,
    Statistics,
    figures_after_learning,
    figures_by_state,
    fitted,
    record_so_far,
    write_record,
)
from pof.checks import check_above_zero, check_whole
from pof.data import Dataset, cifar10
from pof.errors import PofError
from pof.terminal.text_table import text_table

NETWORKS: dict[str, tuple[Callable[[], nn.Module], str]] = {"resnet20": (pof.models.resnet20, BASELINE)}
"""How to build each network, and the file of its weights, relative to the laboratory's folder."""
BATCH = 64
CALIBRATED = 512
"""How many images statistics are estimated from, in every row; all of them, if the network is fitted to fewer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--images", metavar="N", type=int, nargs="+", default=[512, 2048, 8192],
        help="how many images to fit to; a row for each number (512 2048 8192)",
    )  # fmt: skip
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each fit may take (10)")
    parser.add_argument(
        "--learn", metavar="MINUTES", type=float, default=0.0, help="then statistics learn, per state (0)"
    )
    parser.add_argument("--network", choices=tuple(NETWORKS), default="resnet20", help="resnet20")
    parser.add_argument("--record", metavar="FILE", type=Path, help="the record (lab/records/cifar10-fit/...)")


def run(options: argparse.Namespace) -> int:
    """Test and fit, row by row; print the table."""
    check_above_zero(options.minutes, "--minutes", "10 is the default")
    data = cifar10(augment=False)
    images = training_images(data, options.images)
    batches = list(data.test_batches(500))
    path = options.record or LAB / "records/cifar10-fit" / f"{options.network}.json"
    about = {
        "network": options.network,
        "weights": NETWORKS[options.network][1],
        "tested_on": f"{data.test_images:,} test images",
        "statistics_from": min(CALIBRATED, len(images)),
        "states": [str(state) for state in STATES],
    }
    record = record_so_far(path, about)
    top1, fits = record.setdefault("top1", {}), record.setdefault("fits", {})
    for name, statistics in UNFITTED.items():
        if name not in top1:
            top1[name] = _row(_network(options.network), batches, images, statistics)
            write_record(path, record)
    for count in options.images:
        name = f"fitted to {count:,} images"
        if name in top1 and fits[name]["minutes"] == options.minutes:
            continue
        model = _network(options.network)
        fit = fitted(model, images[:count].split(BATCH), count, options.minutes)
        top1[name], fits[name] = _row(model, batches, images[:count], "paired"), fit
        if options.learn:
            pairs, lessons = images[:count][:CALIBRATED].split(BATCH), images[:count].split(BATCH)
            top1[f"{name}, statistics learnt for {options.learn:g} min each"] = figures_after_learning(
                model, STATES, partial(_accuracy, model, batches), pairs, lessons, options.learn
            )
        write_record(path, record)
    print(
        text_table(
            ("", *map(str, STATES)),
            [(name, *("-" if x is None else f"{x:.2f}" for x in row)) for name, row in top1.items()],
        )
    )
    return 0


def training_images(data: Dataset, counts: Sequence[int]) -> Tensor:
    """Images to fit to and to estimate statistics from, always in the same order: the most that is asked for."""
    for count in counts:
        check_whole(count, "--images", "how many images to fit to")
        if count > data.train_images:
            raise PofError(f"--images {count} is more than there are to train on: pass at most {data.train_images}")
    most = min(max(*counts, CALIBRATED), data.train_images)
    found = data.train_batches(BATCH, seed=0, epoch=0)
    return torch.cat([images for images, _ in islice(found, -(-most // BATCH))])[:most]


def _network(name: str) -> nn.Module:
    """A new one, with the weights that it was trained to."""
    build, weights = NETWORKS[name]
    model = build()
    model.load_state_dict(pof.open(LAB / weights).state_dict())
    # Faster on CPUs, and as in its training.
    return model.eval().to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def _row(
    model: nn.Module, tested: Sequence[tuple[Tensor, Tensor]], images: Tensor, statistics: Statistics
) -> list[float]:
    """Top-1 accuracy in percent in each of `STATES`."""
    return figures_by_state(
        model, STATES, lambda: _accuracy(model, tested), statistics, images[:CALIBRATED].split(BATCH)
    )


def _accuracy(model: nn.Module, tested: Sequence[tuple[Tensor, Tensor]]) -> float:
    """The accuracy of the network as it is, in percent."""
    hits = sum(int((model(inputs).argmax(1) == classes).sum()) for inputs, classes in tested)
    return round(100 * hits / sum(len(classes) for _, classes in tested), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    return run_command("fit_cifar10", __doc__, add_arguments, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
