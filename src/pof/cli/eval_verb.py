"""Test a trained network at one sparsity.

example: pof eval runs/digits-pof-0 --sparsity 0.7 --recover-from 0.3
"""

import argparse
import json

from pof.cli import trained_options as trained
from pof.cli.share_option import share

HELP = "test a trained network at one sparsity"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pof eval`."""
    trained.add_arguments(parser)
    parser.add_argument("--sparsity", type=share, help="share of weights to prune (none)")
    parser.add_argument("--recover-from", type=share, metavar="SP1", help="fill the band from SP1 to the sparsity")
    parser.add_argument("--calibrate", action="store_true", help="re-estimate BatchNorm statistics first")


def run(options: argparse.Namespace) -> int:
    """Evaluate one state and print it."""
    found = trained.load(options)
    from pof.ranking.sparsity_state import DENSE, asked_state
    from pof.report.accuracies import state_name
    from pof.trainer.accuracy_sweep import Statistics, sweep, sweep_file

    as_it_is = options.sparsity is None and options.recover_from is None
    state = DENSE if as_it_is else asked_state(options.sparsity, options.recover_from)
    file = trained.file_as_stored(options)
    kept = file is not None and not options.calibrate and bool(file.kept_statistics())
    if file is None:
        (result,) = sweep(found.model, found.elastic, found.data, [state], calibrate=options.calibrate)
    else:
        which: Statistics = "estimated" if options.calibrate else "kept" if kept else "none"
        (result,) = sweep_file(found.model, file, found.data, [state], statistics=which)
    accuracy = result.plain if result.calibrated is None else result.calibrated
    if options.json:
        print(json.dumps({**state._asdict(), "zeros": result.zeros, "accuracy": accuracy}))
    else:
        own = "as the file keeps them" if kept else "re-estimated"
        statistics = "as trained" if result.calibrated is None else own
        print(f"{state_name(state._asdict())}: accuracy {100 * accuracy:.2f} % on {found.data.test_images} test images")
        print(f"{100 * result.zeros:.1f} % of the prunable weights are zero.")
        print(f"BatchNorm statistics: {statistics}.")
    return 0
