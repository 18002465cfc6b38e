"""`pof`: finds the verb, runs it, and turns a user's mistake into one line and exit code 2."""

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from pof.cli import (
    choose_verb,
    compile_verb,
    completion_verb,
    demo_verb,
    eval_verb,
    export_verb,
    fit_verb,
    inspect_verb,
    pack_verb,
    report_verb,
    sweep_verb,
    train_verb,
    unpack_verb,
)
from pof.errors import PofError

VERBS = {
    "demo": demo_verb,
    "fit": fit_verb,
    "train": train_verb,
    "eval": eval_verb,
    "sweep": sweep_verb,
    "choose": choose_verb,
    "pack": pack_verb,
    "unpack": unpack_verb,
    "inspect": inspect_verb,
    "compile": compile_verb,
    "export": export_verb,
    "report": report_verb,
    "completion": completion_verb,
}

EXTRAS = {"torch": "torch", "accelerate": "train", "safetensors": "train", "PIL": "data", "pooch": "data"}
"""Packages that verbs need but `pip install pof` does not install, and the extras that do."""


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, as for every other mistake."""

    def error(self, message: str) -> NoReturn:
        """Print `message` and stop."""
        self.exit(2, f"pof: {message}: {self.prog} --help shows how\n")


def parser() -> argparse.ArgumentParser:
    """Build the whole command line, without importing torch."""
    top = OneLineParser(
        prog="pof",
        description="One neural network for every size: any sparsity in milliseconds, and back.",
        epilog="example: pof demo",
    )
    top.add_argument("--version", action="version", version=f"pof {version('pof')}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB")
    for name, verb in VERBS.items():
        verb.add_arguments(
            verbs.add_parser(
                name, help=verb.HELP, description=verb.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
            )
        )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    # A user's own model may be in the current folder, which `python -m pof` searches too.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    options = _parsed(arguments)
    if options.verb is None:
        parser().print_help(sys.stderr)
        return 2
    try:
        code: int = VERBS[options.verb].run(options)
        return code
    except PofError as error:
        print(f"pof: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        print(f"pof: pof {options.verb} needs {error.name}: pip install 'pof[{extra}]'", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output is gone; Python's flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("pof: stopped", file=sys.stderr)
        return 130


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options; the verb itself reports an unknown one, and names the nearest that it has."""
    top = parser()
    options, unknown = top.parse_known_args(arguments)
    if unknown:
        verbs = next(action for action in top._actions if isinstance(action, argparse._SubParsersAction))
        own: argparse.ArgumentParser = verbs.choices.get(options.verb, top)
        near = get_close_matches(unknown[0].partition("=")[0], own._option_string_actions, n=1)
        own.error(f"there is no {unknown[0]}" + (f", perhaps {near[0]}" if near else ""))
    options.parser = top
    return options


if __name__ == "__main__":
    sys.exit(main())
