"""Compile a network at a sparsity, and show how fast each layer is on this CPU.

FILE is a .pof file, another file of weights, or a run's folder.

example: pof compile model.pof --sparsity 0.8 --bench
"""

import argparse
import json
from dataclasses import asdict

from pof.cli.share_option import share
from pof.errors import PofError

HELP = "show how fast a network runs at a sparsity"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof compile`."""
    parser.add_argument("source", metavar="FILE", help="a .pof file, a file of weights, or a run's folder")
    parser.add_argument("--model", metavar="NAME", help="model name or MODULE:FUNCTION, if the file does not say")
    parser.add_argument("--sparsity", type=share, help="share of weights to prune (none)")
    parser.add_argument("--recover-from", type=share, metavar="SP1", help="fill the band from SP1 to the sparsity")
    parser.add_argument("--size", type=int, metavar="PIXELS", help="size of the images (as in the dataset, else 224)")
    parser.add_argument("--batch", type=int, default=1, help="images at a time (1)")
    parser.add_argument("--threads", type=int, default=1, help="threads to run on (1)")
    parser.add_argument("--bench", action="store_true", help="also compare with the plain model, taking turns")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Compile, and print one row per layer."""
    import torch

    from pof.runtime.compiled_model import compile as compile_model
    from pof.runtime.fair_timing import ratio_to_plain
    from pof.trainer.trained import load_at

    if min(options.batch, options.threads, 1 if options.size is None else options.size) < 1:
        raise PofError("--batch, --threads and --size must be 1 or more")
    torch.set_num_threads(options.threads)
    found = load_at(options.source, options.model, options.sparsity, options.recover_from)
    size = options.size or found.size
    try:
        images = torch.randn(options.batch, found.channels, size, size)
    except RuntimeError:
        raise PofError(
            f"not enough memory for {options.batch} images of {size} x {size}: lower --batch or --size"
        ) from None
    fast = compile_model(found.model, images, threads=options.threads)
    ratio = ratio_to_plain(fast, found.model, images) if options.bench else fast.speedup()
    if options.json:
        print(json.dumps({"speedup": ratio, "layers": [asdict(time) for time in fast.times()]}, indent=2))
        return 0
    print(fast.summary())
    if options.bench:
        threads = "1 thread" if options.threads == 1 else f"{options.threads} threads"
        print(f"taking turns with the plain model, batch {options.batch}, {threads}: {ratio:.2f}x as fast")
    if options.recover_from is not None:
        print("A filled band is not zero: a recovered network is small to store, and fast only where it is zero.")
    return 0
