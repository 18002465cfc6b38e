"""Write a state_dict from a .pof file, at any sparsity.

OUT is .safetensors or .pth. IN may be a URL; only what is needed is read.

example: pof unpack model.pof sparse.safetensors --sparsity 0.7
"""

import argparse
import json

from pof.cli.share_option import share

HELP = "write a state_dict from a .pof file, at any sparsity"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof unpack`."""
    parser.add_argument("source", metavar="IN", help="a .pof file, or its URL")
    parser.add_argument("target", metavar="OUT", help="the .safetensors or .pth file to write")
    parser.add_argument("--sparsity", type=share, help="share of weights to prune (dense)")
    parser.add_argument("--recover-from", type=share, metavar="SP1", help="fill the band from SP1 to the sparsity")
    parser.add_argument("--partial", action="store_true", help="accept a file that is cut off, and use what is there")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Unpack one state."""
    from pof.file.atomic_write import check_target
    from pof.file.pof_file import PofFile
    from pof.file.tensor_files import ENDINGS, write_tensors
    from pof.ranking.sparsity_state import asked_state

    check_target(options.target, ENDINGS)

    file = PofFile(options.source, partial=options.partial)
    whole = options.sparsity is None and options.recover_from is None
    state = file.densest if whole else asked_state(options.sparsity, options.recover_from)
    tensors = file.state_dict(state.sparsity, state.band_start)
    write_tensors(tensors, options.target, file.metadata)
    read = file.bytes_for(state.sparsity, state.band_start)
    if options.json:
        print(json.dumps({"out": options.target, **state._asdict(), "bytes_read": read, "bytes": file.size}))
    else:
        print(f"{options.target}: {state}; {read:,} of {file.size:,} bytes were read")
    return 0
