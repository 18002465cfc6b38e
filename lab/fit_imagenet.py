"""Fit a network with public ImageNet weights to unlabelled images, and test it at every size.

The archive has the folders `calibrate`, to fit to, and `validate`, to test on;
each image is named by its class. Settings are chosen with --held-out, which
sets 200 of the images to fit to aside and never looks at `validate`.
Everything runs in bfloat16 where that is faster, and the record says so.
--baselines tests what needs no fit, and adds it to the record.

example: python -m lab.fit_imagenet resnet50 --images images.zip --minutes 60
"""

import argparse
import copy
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import pof
from lab.command_line import LAB, run_command
from lab.pretrained_networks import NETWORKS, read_images
from lab.state_rows import (
    BANDS,
    SPARSITIES,
    STATES,
    UNFITTED,
    Statistics,
    figures_after_learning,
    figures_by_state,
    fitted,
    record_so_far,
    write_record,
)
from pof.elastic.half_precision import autocast, half_precision_is_faster
from pof.ranking.sparsity_state import DENSE
from pof.terminal.text_table import text_table

CALIBRATED = 256
"""How many images statistics are estimated from."""
ASIDE = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("network", choices=tuple(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--images", metavar="ZIP", type=Path, required=True, help="the archive of images")
    parser.add_argument("--weights", metavar="FILE", type=Path, help="weights of MobileNetV2 (.safetensors)")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the fit may take (60)")
    parser.add_argument(
        "--learn", metavar="MINUTES", type=float, default=0.0, help="then statistics learn, per state (0)"
    )
    parser.add_argument("--held-out", action="store_true", help="test on 200 images of `calibrate` instead")
    parser.add_argument("--baselines", action="store_true", help="test what needs no fit, instead of a fit")
    parser.add_argument("--out", metavar="FILE", type=Path, help="the .pof file to write")
    parser.add_argument("--record", metavar="FILE", type=Path, help="the record to write (lab/records/imagenet/...)")


def run(options: argparse.Namespace) -> int:
    """Fit, test, write the record, print the table."""
    network = NETWORKS[options.network]
    model = network.build(options.weights).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels, classes = read_images(options.images, "calibrate")
    order = torch.randperm(len(pixels), generator=torch.Generator().manual_seed(123))
    inputs = network.inputs(pixels[order]).contiguous(memory_format=torch.channels_last)
    if options.held_out:
        inputs, tested, wanted = inputs[:-ASIDE], inputs[-ASIDE:], classes[order][-ASIDE:]
    else:
        pixels, wanted = read_images(options.images, "validate")
        tested = network.inputs(pixels).contiguous(memory_format=torch.channels_last)
    test = Tester(model, list(inputs.split(32)), tested, wanted)
    path = options.record or LAB / "records/imagenet" / f"{options.network}.json"
    about = {
        "network": options.network,
        "weights": network.source,
        "tested_on": f"{len(tested)} images of {'calibrate, held out' if options.held_out else 'validate'}",
        "statistics_from": CALIBRATED,
        "states": [str(state) for state in STATES],
    }
    found = record_so_far(path, about)
    found["bfloat16"] = test.half
    top1 = found.setdefault("top1", {})
    if options.baselines:
        top1["torch.nn.utils.prune, global"] = test.by_torch()
        top1 |= {name: test.states(statistics) for name, statistics in UNFITTED.items()}
    else:
        about_fit = fitted(model, test.batches, len(inputs), options.minutes)
        top1["fitted"] = test.states("paired")
        found |= about_fit
        if options.learn:
            top1[f"fitted, statistics learnt for {options.learn:g} min each"] = test.after_learning(options.learn)
    if options.out:
        data = test.batches[: CALIBRATED // 32]
        pof.save(model, options.out, scope="global", calibrate=data, states=(*SPARSITIES, *BANDS))
        read = [pof.open(options.out).bytes_for(state.sparsity, state.recover_from) for state in STATES]
        found["bytes_read"] = found.get("bytes_read", {}) | {"as it came" if options.baselines else "fitted": read}
    write_record(path, found)
    print(text_table(("", *map(str, STATES)), [(name, *map(_figure, row)) for name, row in top1.items()]))
    return 0


class Tester:
    """Top-1 accuracy of a model in any state, in percent."""

    def __init__(self, model: nn.Module, batches: list[Tensor], tested: Tensor, wanted: Tensor) -> None:
        self.model, self.batches = model, batches
        self._tested, self._wanted = tested, wanted
        self.half = half_precision_is_faster(model, batches[0])

    @torch.no_grad()
    def accuracy(self) -> float:
        """The accuracy of the model as it is."""
        hits = 0
        with autocast(self.model, self.half):
            for images, classes in zip(self._tested.split(50), self._wanted.split(50), strict=True):
                hits += int((self.model(images).argmax(1) == classes).sum())
        return round(100 * hits / len(self._wanted), 2)

    def states(self, statistics: Statistics) -> list[float]:
        """The accuracy in each of `STATES`, with statistics as they are (None), "replaced" or "paired"."""
        data = self.batches[: CALIBRATED // 32]
        return figures_by_state(self.model, STATES, self.accuracy, statistics, data, self.half)

    def after_learning(self, minutes: float) -> list[float | None]:
        """The accuracy in the states whose statistics learn, each for so long."""
        data = self.batches[: CALIBRATED // 32]
        return figures_after_learning(self.model, STATES, self.accuracy, data, self.batches, minutes, self.half)

    def by_torch(self) -> list[float | None]:
        """The accuracy after torch's own global magnitude pruning, of the same weights; it knows no bands."""
        found: list[float | None] = []
        ours = self.model
        for state in STATES:
            if state != DENSE and not state.is_pruned:
                found.append(None)
                continue
            # A copy: what it prunes is lost. It cannot prune weights that are stored channels last.
            self.model = copy.deepcopy(ours).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            layers = [
                (self.model.get_submodule(entry.name.rpartition(".")[0]), "weight") for entry in pof.plan(self.model)
            ]
            if state != DENSE:
                torch_prune.global_unstructured(layers, torch_prune.L1Unstructured, amount=state.sparsity)
            found.append(self.accuracy())
        self.model = ours
        return found


def _figure(value: Any) -> str:
    return "-" if value is None else f"{value:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_command("fit_imagenet", __doc__, add_arguments, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
