"""Write a state_dict from a .pof file, at any sparsity.

OUT is .safetensors or .pth. IN may be a URL; only what is needed is read.

example: pof unpack model.pof sparse.safetensors --sparsity 0.7
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from pof.cli.shares import share
from pof.errors import PofError

if TYPE_CHECKING:
    from torch import Tensor

HELP = "write a state_dict from a .pof file, at any sparsity"
MOST_COPIES = 16
"""How many times as large a safetensors file may be for tied tensors."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof unpack`."""
    parser.add_argument("source", metavar="IN", help="a .pof file, or its URL")
    parser.add_argument("target", metavar="OUT", help="the .safetensors or .pth file to write")
    parser.add_argument("--sparsity", type=share, help="share of weights to prune (dense)")
    parser.add_argument("--recover-from", type=share, metavar="SP1", help="fill the band from SP1 to the sparsity")
    parser.add_argument("--partial", action="store_true", help="take a file that is cut off, as far as it goes")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def run(options: argparse.Namespace) -> int:
    """Unpack one state."""
    if Path(options.target).suffix not in (".safetensors", ".pth", ".pt"):
        raise PofError(f"OUT {options.target!r} must end in .safetensors or .pth")
    from pof.file import PofFile
    from pof.states import asked_state

    file = PofFile(options.source, partial=options.partial)
    whole = options.sparsity is None and options.recover_from is None
    state = file.densest if whole else asked_state(options.sparsity, options.recover_from)
    tensors = file.state_dict(state.sparsity, state.band_start)
    _write(Path(options.target), tensors, file.metadata)
    read = file.bytes_for(state.sparsity, state.band_start)
    if options.json:
        print(json.dumps({"out": options.target, **state._asdict(), "bytes_read": read, "bytes": file.size}))
    else:
        print(f"{options.target}: {state}; {read:,} of {file.size:,} bytes were read")
    return 0


def _write(path: Path, tensors: "dict[str, Tensor]", metadata: dict[str, str]) -> None:
    import torch

    from pof.replacing import replacing
    from pof.train.weights import save_tensors

    if path.suffix == ".safetensors":
        _refuse_many_copies(tensors)
        with replacing(path) as temporary:
            # Tied tensors are one memory, which safetensors does not write twice.
            save_tensors({name: value.clone() for name, value in tensors.items()}, temporary, metadata)
        return
    try:
        with replacing(path) as temporary:
            torch.save(tensors, temporary)
    except RuntimeError as error:  # torch's for a full disk
        raise PofError(f"cannot write {str(path)!r}: {str(error).splitlines()[0]}") from None


def _refuse_many_copies(tensors: "dict[str, Tensor]") -> None:
    """Tied tensors are written once for each name: not if that makes a small file a huge one."""
    once = {value.data_ptr(): value.nbytes for value in tensors.values()}
    if sum(value.nbytes for value in tensors.values()) > MOST_COPIES * sum(once.values()):
        raise PofError("safetensors holds tied tensors once a name, which are too many here: write a .pth file")
