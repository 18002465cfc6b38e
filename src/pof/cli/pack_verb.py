"""Write weights as a .pof file; no model code is needed.

IN is a run's folder or a file of weights (.safetensors, or .pth that holds only
tensors). If IN does not name its model, names and shapes decide what is pruned:
all tensors called weight with two or more dimensions, except the first
convolution and embeddings.

example: pof pack runs/digits-pof-0 model.pof --calibrate
"""

import argparse
import json
import sys
from typing import TYPE_CHECKING, cast

from pof.errors import PofError
from pof.file.atomic_write import check_target
from pof.file.locations import suffix_of

if TYPE_CHECKING:
    from pof.ranking.sparsity_state import Magnitudes, Scope

KEPT = ("model", "data", "recipe")
"""The keys of IN's metadata that go into the file."""
HELP = "write a .pof file from a state_dict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof pack`."""
    parser.add_argument("source", metavar="IN", help="a file of weights, or a run's folder")
    parser.add_argument("target", metavar="OUT", help="the .pof file to write")
    parser.add_argument(
        "--values", choices=("exact", "fp16", "int8"), default="exact", help="how values are stored (exact)"
    )
    parser.add_argument(
        "--stages", metavar="S,S,...", help="sparsities at which the file can be cut (0.9,0.7,0.3); '' for none"
    )
    parser.add_argument(
        "--scope", choices=("layer", "global"), help="which weights are ranked together (as trained, else layer)"
    )
    parser.add_argument(
        "--magnitudes", choices=("raw", "unit"), help="unit for networks trained on the sphere (as IN says, else raw)"
    )
    parser.add_argument("--include", metavar="GLOB", action="append", default=[], help="prune only these weights")
    parser.add_argument("--exclude", metavar="GLOB", action="append", default=[], help="do not prune these weights")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="keep BatchNorm statistics for many sparsities; needs the dataset (takes a while)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Pack, and print the size of the file."""
    stages = parse_stages(options.stages)
    check_target(options.target, (".pof",))
    from pof.file.pof_file import PofFile
    from pof.file.writing import DEFAULT_STAGES
    from pof.terminal.progress_bars import Bars
    from pof.trainer.packing import facts_about, pack
    from pof.trainer.weight_files import read_weights

    state = read_weights(options.source)
    if suffix_of(options.source) == ".pof" and not options.calibrate and PofFile(options.source).kept_statistics():
        print("pof: the BatchNorm statistics in IN are not copied: --calibrate estimates new ones", file=sys.stderr)
    facts = facts_about(options.source)
    scope = cast("Scope", options.scope or facts.get("scope", "layer"))
    magnitudes = cast("Magnitudes", options.magnitudes or facts.get("magnitudes", "raw"))
    dense = sum(value.numel() * value.element_size() for value in state.values())
    with Bars() as bars:
        size = pack(
            options.source,
            options.target,
            facts,
            calibrate=options.calibrate,
            progress=bars.update if bars.live and not options.json else None,
            values=options.values,
            scope=scope,
            magnitudes=magnitudes,
            include=options.include,
            exclude=options.exclude,
            stages=DEFAULT_STAGES if stages is None else stages,
            metadata={name: facts[name] for name in KEPT if name in facts},
        )
    if options.json:
        print(json.dumps({"out": options.target, "bytes": size, "dense_bytes": dense}))
    else:
        print(f"{options.target}: {size:,} bytes, {size / max(dense, 1):.1%} of the {dense:,} bytes of its tensors")
        together = "each layer by itself" if scope == "layer" else "all layers together"
        print(f"ranked by {magnitudes} magnitudes, {together}")
        kept = [tensor.name for tensor in PofFile(options.target).head.of_role("plain") if len(tensor.shape) > 1]
        if kept:
            print(f"never pruned: {', '.join(kept[:3])}{f' and {len(kept) - 3} more' if len(kept) > 3 else ''}")
        if not options.calibrate and "data" in facts and any(name.endswith(".running_var") for name in state):
            print("without BatchNorm statistics for its sparsities: --calibrate adds them")
    return 0


def parse_stages(text: str | None) -> tuple[float, ...] | None:
    """Return the sparsities in `text`, or None if there is no text."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise PofError(f"--stages {text!r} must be numbers, such as 0.9,0.7,0.3") from None
