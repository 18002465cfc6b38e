"""Write a .pof file from a state_dict: no model code is needed.

IN is a file of weights (.safetensors, or .pth that holds tensors only) or the
folder of a run. Names and shapes decide what is pruned: what is called weight
and has two dimensions or more, but the first convolution and embeddings.

example: pof pack model.safetensors model.pof --values fp16
"""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pof.errors import PofError
from pof.replacing import check_target
from pof.urls import suffix_of

if TYPE_CHECKING:
    from pof.states import Magnitudes, Scope

KEPT = ("model", "data", "recipe")
"""What of IN's own metadata goes into the file."""
HELP = "write a .pof file from a state_dict"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof pack`."""
    parser.add_argument("source", metavar="IN", help="a file of weights, or a run's folder")
    parser.add_argument("target", metavar="OUT", help="the .pof file to write")
    parser.add_argument("--values", choices=("exact", "fp16", "int8"), default="exact", help="how (exact)")
    parser.add_argument("--stages", metavar="S,S,...", help="sparsities where it can be cut (0.9,0.7,0.3); '' for none")
    parser.add_argument("--scope", choices=("layer", "global"), help="what is ranked together (layer)")
    parser.add_argument(
        "--magnitudes", choices=("raw", "unit"), help="unit for what was trained with pof (as IN says, else raw)"
    )
    parser.add_argument("--include", metavar="GLOB", action="append", default=[], help="prune only these")
    parser.add_argument("--exclude", metavar="GLOB", action="append", default=[], help="do not prune these")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Pack, and say how small it became."""
    stages = parse_stages(options.stages)
    check_target(options.target, (".pof",))
    try:
        from pof.file import PofFile
        from pof.file.write import DEFAULT_STAGES, save_state_dict
        from pof.train.weights import facts_of, read_weights
    except ModuleNotFoundError as error:
        raise PofError(f"this needs {error.name}: pip install {error.name}") from None
    state = read_weights(options.source)
    if suffix_of(options.source) == ".pof" and PofFile(options.source).kept_statistics():
        print("pof: BatchNorm statistics that IN keeps are not taken over: pof.save(calibrate=...)", file=sys.stderr)
    facts = _run_facts(Path(options.source)) if Path(options.source).is_dir() else facts_of(options.source)
    scope = cast("Scope", options.scope or facts.get("scope", "layer"))
    magnitudes = cast("Magnitudes", options.magnitudes or facts.get("magnitudes", "raw"))
    dense = sum(value.numel() * value.element_size() for value in state.values())
    size = save_state_dict(
        state,
        options.target,
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
    return 0


def parse_stages(text: str | None) -> tuple[float, ...] | None:
    """The sparsities in `text`, or None if there is no text."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise PofError(f"--stages {text!r} must be numbers, such as 0.9,0.7,0.3") from None


def _run_facts(folder: Path) -> dict[str, str]:
    """What the recipe of a run says of its weights."""
    from pof.train.build import weights_facts
    from pof.train.trained import recipe_of

    return weights_facts(recipe_of(folder))
