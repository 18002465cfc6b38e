"""Print a script that completes `pof` in a shell.

bash: pof completion bash > ~/.local/share/bash-completion/completions/pof
zsh:  pof completion zsh > _pof, in a folder on $fpath

example: eval "$(pof completion bash)"
"""

import argparse

HELP = "print a script that completes pof in bash or zsh"
SHELLS = ("bash", "zsh")
FILES = ("DIR", "FILE", "IN", "OUT", "RECIPE.toml", "RUN", "RUN_OR_FILE")
"""Words in the help that stand for a path."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof completion`."""
    parser.add_argument("shell", choices=SHELLS, help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    top: argparse.ArgumentParser = options.parser
    (verbs,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    for verb in verbs.choices.values():
        for action in verb._actions:
            if action.metavar in FILES:
                action.complete = shtab.FILE
    print(shtab.complete(top, shell=options.shell))
    return 0
