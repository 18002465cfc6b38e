"""Finding a trained network: the options that `pof eval`, `pof sweep` and `pof choose` have in common."""

import argparse
from typing import TYPE_CHECKING

from pof.file.locations import suffix_of

if TYPE_CHECKING:
    from pof.file.pof_file import PofFile
    from pof.trainer.trained import Trained


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options for the network, its images and its ranking."""
    parser.add_argument("source", metavar="RUN_OR_FILE", help="a run's folder, or a file of weights")
    parser.add_argument("--model", metavar="NAME", help="model name or MODULE:FUNCTION, if the file does not say")
    parser.add_argument("--data", metavar="NAME", help="dataset, if the file does not say")
    parser.add_argument(
        "--scope", choices=("layer", "global"), help="which weights are ranked together (as trained, else layer)"
    )
    parser.add_argument("--magnitudes", choices=("raw", "unit"), help="raw, or unit for networks trained on the sphere")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")


def load(options: argparse.Namespace) -> "Trained":
    """Load the network that the options name."""
    from pof.trainer.kept_heap import keep_freed_memory
    from pof.trainer.trained import load_trained

    keep_freed_memory()
    return load_trained(
        options.source, model=options.model, data=options.data, scope=options.scope, magnitudes=options.magnitudes
    )


def file_as_stored(options: argparse.Namespace) -> "PofFile | None":
    """Return the named .pof file, unless it is to be ranked differently from how it is stored."""
    from pof.file.pof_file import PofFile

    if suffix_of(options.source) != ".pof" or options.scope is not None or options.magnitudes is not None:
        return None
    return PofFile(options.source)
