"""Runs the laboratory's commands as `pof` runs its verbs: a user's mistake is reported in one line."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pof.cli.main import OneLineParser
from pof.errors import PofError

LAB = Path(__file__).parent
"""The folder of the records and weights; paths in records are relative to it."""


def run_command(
    name: str,
    about: str | None,
    add_arguments: Callable[[argparse.ArgumentParser], None],
    run: Callable[[argparse.Namespace], int],
    arguments: Sequence[str] | None = None,
) -> int:
    """Parse, run, and return the exit code."""
    parser = OneLineParser(
        prog=f"python -m lab.{name}", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except PofError as error:
        print(f"pof: {error}", file=sys.stderr)
        return 2
