"""Find the state that meets the limits, by bisection.

With --at-least this is the sparsest state that is accurate enough, otherwise
the densest one that is small and fast enough.

RUN_OR_FILE is a run's folder or a file of weights. A .pof file is measured with
the BatchNorm statistics that it keeps, others with re-estimated ones.

example: pof choose model.pof --at-least 0.90 --max-bytes 200000
"""

import argparse
import json
from typing import TYPE_CHECKING, Any

from pof.cli import trained_options as trained
from pof.cli.share_option import share
from pof.errors import PofError
from pof.file.locations import suffix_of

if TYPE_CHECKING:
    from pof.elastic.state_search import ChosenState, Trial

HELP = "find the sparsest state that is good enough, or the densest that fits"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof choose`."""
    trained.add_arguments(parser)
    parser.add_argument(
        "--at-least", type=float, metavar="ACCURACY", help="lowest accuracy on the test images, from 0 to 1"
    )
    parser.add_argument("--max-bytes", type=float, metavar="N", help="most bytes to read from the file")
    parser.add_argument("--max-ms", type=float, metavar="MS", help="longest time for one image, compiled, on this CPU")
    parser.add_argument("--recover-from", type=share, metavar="SP1", help="fill the band from SP1 to the sparsity")
    parser.add_argument("--no-calibrate", action="store_true", help="do not re-estimate BatchNorm statistics")


def run(options: argparse.Namespace) -> int:
    """Choose, and print what was tried."""
    from pof.elastic.state_search import Limits

    if options.at_least is None and options.max_bytes is None and options.max_ms is None:
        raise PofError("nothing to choose by: give --at-least, --max-bytes or --max-ms")
    least = options.at_least
    if least is not None and not 0 <= least <= 1:
        remedy = f"write {least / 100:g} for {least:g} %" if 1 < least <= 100 else "it is an accuracy, such as 0.9"
        raise PofError(f"--at-least {least:g} must be in [0, 1]: {remedy}")
    for option, most in {"--max-bytes": options.max_bytes, "--max-ms": options.max_ms}.items():
        if most is not None and not most > 0:
            raise PofError(f"{option} {most:g} must be above 0")
    limits = Limits(options.at_least, options.max_bytes, options.max_ms)
    found = trained.load(options)
    from pof.trainer.trained_choice import choose_for

    calibrate = not options.no_calibrate
    as_stored = options.scope is None and options.magnitudes is None and calibrate
    how = {"recover_from": options.recover_from, "calibrate": calibrate, "as_stored": as_stored}
    choice = choose_for(options.source, found, limits, **how)
    if options.json:
        tried = [{**trial.state._asdict(), **_figures(trial)} for trial in choice.tried]
        print(json.dumps({**choice.state._asdict(), **_figures(choice), "tried": tried}))
        return 0
    print(choice)
    band = "" if choice.state.band_start is None else f" --recover-from {choice.state.band_start:g}"
    print(f"chosen: {choice.state}")
    print(f"next: pof export {options.source} small.pt2 --sparsity {choice.state.sparsity:g}{band}")
    if calibrate and not (as_stored and suffix_of(options.source) == ".pof"):
        print("BatchNorm statistics were re-estimated for each state; pof export does the same")
    return 0


def _figures(measured: "ChosenState | Trial") -> dict[str, Any]:
    return {name: getattr(measured, name) for name in ("score", "bytes", "milliseconds")}
