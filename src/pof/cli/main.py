"""`pof`: finds the verb, runs it, turns a user's mistake into one line and exit code 2."""

import argparse
import sys
from collections.abc import Sequence

import pof
from pof.cli import demo
from pof.errors import PofError

VERBS = {"demo": demo}


def parser() -> argparse.ArgumentParser:
    """The whole command line; making it imports no torch."""
    top = argparse.ArgumentParser(
        prog="pof",
        description="Recoverable pruning for PyTorch: train once, then any sparsity, and back.",
        epilog="example: pof demo",
    )
    top.add_argument("--version", action="version", version=f"pof {pof.__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    for name, verb in VERBS.items():
        verb.add_arguments(
            verbs.add_parser(
                name, help=verb.HELP, description=verb.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
            )
        )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = parser().parse_args(arguments)
    try:
        VERBS[options.verb].run(options)
    except PofError as error:
        print(f"pof: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pof: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
