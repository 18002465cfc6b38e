"""Write a network at a sparsity as a file that other tools read.

FILE is a .pof file or another file of weights (or its URL), or a run's folder.
The ending of OUT says what is written: .safetensors or .pth (the state_dict,
with the original keys), .onnx or .pt2 (the network, for batches of any size).
BatchNorm statistics of a pruned state are those that a .pof file keeps for it;
for other sources they are re-estimated from training images, as in pof choose.

example: pof export model.pof model.onnx --sparsity 0.8
"""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pof.cli.share_option import share
from pof.errors import PofError
from pof.file.locations import suffix_of

if TYPE_CHECKING:
    from pof.runtime.exported_files import Exported

HELP = "write a network at a sparsity as safetensors, .pth, ONNX or .pt2"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof export`."""
    parser.add_argument("source", metavar="FILE", help="a .pof file, a file of weights, or a run's folder")
    parser.add_argument("target", metavar="OUT", help="the .safetensors, .pth, .onnx or .pt2 file to write")
    parser.add_argument("--model", metavar="NAME", help="model name or MODULE:FUNCTION, if the file does not say")
    parser.add_argument("--sparsity", type=share, help="share of weights to prune (none)")
    parser.add_argument("--recover-from", type=share, metavar="SP1", help="fill the band from SP1 to the sparsity")
    parser.add_argument(
        "--size", type=int, metavar="PIXELS", help="size of the images, for a graph (as in the dataset, else 224)"
    )
    parser.add_argument(
        "--scope", choices=("layer", "global"), help="which weights are ranked together (as trained, else layer)"
    )
    parser.add_argument("--no-calibrate", action="store_true", help="do not re-estimate BatchNorm statistics")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Export, and say what was written."""
    from pof.file.atomic_write import check_target
    from pof.file.tensor_files import ENDINGS, write_tensors
    from pof.ranking.sparsity_state import asked_state
    from pof.runtime.exported_files import GRAPHS, Exported, export

    check_target(options.target, (*ENDINGS, *GRAPHS))
    if options.size is not None and options.size < 1:
        raise PofError(f"--size {options.size} must be 1 or more")
    is_graph = suffix_of(options.target) in GRAPHS
    if suffix_of(options.source) == ".pof" and not is_graph and options.model is None:
        from pof.file.pof_file import PofFile

        file = PofFile(options.source)
        whole = options.sparsity is None and options.recover_from is None
        state = file.densest if whole else asked_state(options.sparsity, options.recover_from)
        tensors = file.state_dict(state.sparsity, state.band_start)
        done = Exported(options.target, write_tensors(tensors, options.target, file.metadata))
    else:
        import torch

        from pof.trainer.trained import load_at

        found = load_at(
            options.source, options.model, options.sparsity, options.recover_from,
            scope=options.scope, calibrate=not options.no_calibrate,
        )  # fmt: skip
        size = options.size or found.size
        done = export(found.model, options.target, torch.randn(2, found.channels, size, size) if is_graph else None)
    print(json.dumps(_figures(done)) if options.json else _text(done, is_graph))
    return 0


def _text(done: "Exported", is_graph: bool) -> str:
    text = f"{done.path}: {done.bytes:,} bytes"
    if not is_graph:
        return text
    batches = "batches of any size" if done.free_batch else "batches of this size only"
    if done.deviation is None:
        return f"{text}, {batches}; not compared with torch: pip install onnxruntime"
    return f"{text}, {batches}; outputs within {done.deviation:.0e} of torch's"


def _figures(done: "Exported") -> dict[str, Any]:
    return {"out": done.path, **{name: value for name, value in asdict(done).items() if name != "path"}}
