"""`pof.fit`: a pretrained network, a few unlabelled inputs, minutes on a CPU, then every sparsity."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pof.checks import check_above_zero, check_choice
from pof.elastic.batch_statistics import check_batches
from pof.elastic.live_model import state_now
from pof.errors import PofError
from pof.fitting.fit_checkpoint import FitCheckpoint
from pof.fitting.fit_report import FitReport, tensors_of
from pof.fitting.fitting_run import FittingRun, Progress
from pof.planning.name_globs import as_globs
from pof.planning.pruning_plan import plan
from pof.planning.wrappers import unwrap
from pof.ranking.sparsity_state import DENSE, Scope


def fit(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    minutes: float = 30.0,
    scope: Scope = "global",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    checkpoint: str | Path | None = None,
    progress: Progress | None = None,
) -> FitReport:
    """Fit a pretrained `model` in place to a few unlabelled inputs, so that it can be pruned to any sparsity.

    Rows are put on a common scale if that makes magnitudes tell more; the kept weights are refitted by least squares
    for all sparsities at once; and for the rest of the time the network as it came teaches the fitted one at random
    sparsities. Labels are never looked at. If anything fails, or on Ctrl-C, the model is as it was.

    Args:
        model: any module that `pof.plan` knows.
        batches: tensors, tuples that begin with the input, or dicts of inputs, in a list or another iterable. A
            DataLoader is read anew for each epoch, so it may augment; an iterator is read into memory.
        minutes: the time to take. About two are enough for statistics and least squares; more buys training.
        scope: as in `Elastic`; use the same one there and in `pof.save`.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        checkpoint: a file that keeps what is finished. If it is there already, from a fit of the same network, the fit
            goes on from it. It is deleted at the end.
        progress: called with the stage, the share of the time that is over, and a note.

    Returns:
        a report, which prints as tables; `report.undo()` brings the network back as it came.

    Example:
        >>> model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 10))
        >>> inputs = torch.randn(256, 16)
        >>> report = fit(model, inputs.split(64), minutes=0.01)
        >>> report.after[-1] < report.before[-1]
        True
        >>> report.undo()
    """
    seconds = 60 * check_above_zero(minutes, "minutes", "30 is a good start, 2 are enough for least squares")
    check_choice(scope, "scope", ("layer", "global"))
    check_batches(batches)
    include, exclude = as_globs(include, "include"), as_globs(exclude, "exclude")
    chosen = plan(model, include=include, exclude=exclude)
    bare = unwrap(model)
    if (state := state_now(bare)) != DENSE:
        raise PofError(f"an Elastic has this model {state}: call elastic.restore() before pof.fit")
    if any(parameter.is_meta for parameter in bare.parameters()):
        raise PofError("the model is on the meta device and has no values: load the weights first")
    data = list(batches) if isinstance(batches, Iterator) else batches
    original = {name: tensor.detach().clone() for name, tensor in tensors_of(bare).items()}
    with _evaluating(bare), _undone_on_error(bare, original):
        work = FittingRun(bare, chosen, (include, exclude), data, scope, seconds, progress)
        kept = (
            None
            if checkpoint is None
            else FitCheckpoint(Path(checkpoint), original, scope, [entry.name for entry in chosen])
        )
        report = work.run(kept)
        if kept is not None:
            kept.remove()
    report._model, report._original = bare, original
    return report


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode inside the block."""
    modes = [(module, module.training) for module in model.modules()]
    for module, _ in modes:
        module.training = False
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _undone_on_error(model: nn.Module, original: dict[str, Tensor]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for name, tensor in tensors_of(model).items():
                tensor.copy_(original[name])
        raise
