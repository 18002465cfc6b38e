"""`pof.fit`: a pretrained network, a few unlabelled inputs, minutes on a CPU, then every sparsity."""

import copy
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pof.checks import check_above_zero, check_choice
from pof.elastic.batch_statistics import (
    check_batches,
    estimated,
    norm_layers,
    read_statistics,
    run_batch,
    write_statistics,
)
from pof.elastic.live_model import LiveModel, state_now
from pof.elastic.paired_statistics import paired_statistics
from pof.errors import PofError
from pof.fitting.fit_checkpoint import FitCheckpoint
from pof.fitting.fit_report import FitReport, FitStage, tensors_of
from pof.fitting.input_batches import first_inputs, later_batches, size_of
from pof.fitting.layer_inputs import refittable_layers
from pof.fitting.nested_distillation import EASE, DistillationSettings, distil
from pof.fitting.output_distance import blind_distance, output_distance, output_tensors
from pof.fitting.ranking_trial import balance_if_it_helps
from pof.fitting.refitting import refit
from pof.planning.name_globs import as_globs
from pof.planning.pruning_plan import Plan, plan
from pof.planning.wrappers import unwrap
from pof.ranking.sparsity_state import DENSE, Scope, pruned_state

FEW = 128
"""With fewer inputs than this, a fit warns."""
STATES = (0.3, 0.5, 0.7, 0.8, 0.9)
"""The sparsities that a network is fitted to at most."""
LOOKED_AT = (0.0, *STATES)
"""The sparsities whose distances are reported; those of the dense network too, whose weights change."""
BEYOND = 0.02
"""Training goes so much beyond the highest sparsity that is served."""
SAMPLED, MEASURED = 512, 64
"""How many inputs statistics and least squares are taken from at most, and how many distances."""
MOST_ASIDE = 0.25
"""The inputs for measuring are set aside if they are at most this share of all."""
SAMPLE_TIME, REFIT_TIME = 0.05, 0.25
"""The share of the time that one pass over the sample may take, and all of least squares."""
LEAST_SECONDS = 20.0
"""Training that is shorter than this is not begun."""

Progress = Callable[[str, float, str], None]
"""Told as a fit goes on: the stage, the share of the time that is over, and a note."""


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
        minutes: the time to take. Two are enough for statistics and least squares; more buys training.
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
        work = _Fit(bare, chosen, (include, exclude), data, scope, seconds, progress)
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


class _Fit:
    """One fit, stage by stage."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        globs: tuple[tuple[str, ...], tuple[str, ...]],
        batches: Iterable[Any],
        scope: Scope,
        seconds: float,
        progress: Progress | None,
    ) -> None:
        self._model, self._plan, self._globs = model, plan, globs
        self._batches, self._scope = batches, scope
        self._began, self._seconds = time.monotonic(), seconds
        self._progress, self._stages = progress, list[FitStage]()
        self._served: tuple[float, ...] = STATES
        self._teacher = copy.deepcopy(model).requires_grad_(False)
        self._few, self._inputs = first_inputs(batches, MEASURED)
        self._held_out = 0
        aside = sum(map(size_of, islice(batches, len(self._few))))
        if aside <= MOST_ASIDE * self._inputs:
            self._batches = later_batches(batches, len(self._few))
            self._held_out, self._inputs = aside, self._inputs - aside
        if self._inputs < FEW:
            warn_of_few(self._inputs)
        began = time.monotonic()
        self._lessons = _lessons(self._teacher, self._few)
        each = (time.monotonic() - began) / sum(map(size_of, self._few))
        most = max(MEASURED, min(SAMPLED, int(SAMPLE_TIME * seconds / each)))
        self._sample, _ = first_inputs(self._batches, most)

    def run(self, checkpoint: FitCheckpoint | None) -> FitReport:
        """Run all stages, and return the report."""
        before = self._distances("first look")
        layers, others = refittable_layers(self._model, self._plan)
        errors: tuple[Any, Any] = ({}, {})
        if checkpoint is not None and checkpoint.load(tensors_of(self._teacher), tensors_of(self._model)):
            self._served = self._sparsities_to_serve()
            self._end("least squares", time.monotonic(), "taken from the checkpoint")
        else:
            with self._stage("ranking") as remark:
                remark.append(
                    balance_if_it_helps(self._model, self._teacher, self._plan, layers, self._few, self._score)
                )
            # Statistics are compared with the teacher's, so it has the same scales; it computes what it did.
            self._teacher = copy.deepcopy(self._model).requires_grad_(False)
            self._served = self._sparsities_to_serve()
            with self._stage("least squares") as remark:
                errors = refit(
                    self._model,
                    self._plan,
                    layers,
                    self._sample,
                    self._scope,
                    self._served,
                    REFIT_TIME * self._seconds,
                    lambda note: self._tell("least squares", note),
                )
                remark.append(f"{sum(map(size_of, self._sample))} inputs, up to {self._served[-1]:.0%}")
                others = {**others, **{each.name: "it saw no input" for each in layers if each.name not in errors[0]}}
            self._renew_statistics()
            if checkpoint is not None:
                checkpoint.save(tensors_of(self._teacher), tensors_of(self._model))
        advice = self._train()
        after = self._distances("last look")
        worse = [f"{s:.0%}" for s, old, new in zip(LOOKED_AT, before, after, strict=True) if s and new > old]
        if worse:
            advice = f"further off than before at {', '.join(worse)}: pass more inputs, or report.undo()"
        stages = tuple(self._stages)
        return FitReport(
            self._inputs, self._scope, LOOKED_AT, before, after, stages, *errors, others, advice, self._held_out
        )

    def _sparsities_to_serve(self) -> tuple[float, ...]:
        """Those that are less than half as far off as the mean output is, and the first one that is lost; two or more.

        What lies far beyond cannot be brought back, and its errors would spoil the rest.
        """
        blind = blind_distance(self._lessons)
        for count, sparsity in enumerate(STATES, 1):
            if count > 1 and self._score(sparsity) > blind / 2:
                return STATES[:count]
        return STATES

    def _train(self) -> str:
        """Distil for the time that is left, except what the closing measurements need."""
        looks = 3 if self._held_out else 1
        left = self._seconds - (time.monotonic() - self._began) - looks * self._stages[0].seconds
        if left < LEAST_SECONDS:
            return "more minutes would buy training: it begins where least squares ends"
        came, distances = {name: tensor.clone() for name, tensor in tensors_of(self._model).items()}, self._now()
        with self._stage("training") as remark:
            seen: list[float] = []

            def report(over: float, distance: float) -> None:
                seen.append(distance)
                self._tell("training", f"distance {sum(seen[-20:]) / len(seen[-20:]):.3g}", over)

            include, exclude = self._globs
            steps = distil(
                self._model,
                self._teacher,
                self._batches,
                left,
                scope=self._scope,
                include=include,
                exclude=exclude,
                settings=DistillationSettings(high=self._served[-1] + BEYOND),
                report=report,
            )
            remark.append(f"{steps} steps")
        self._renew_statistics()
        if self._held_out and not _nearer(self._now(), distances):
            with torch.no_grad():
                for name, tensor in tensors_of(self._model).items():
                    tensor.copy_(came[name])
            return "training brought new inputs no nearer and was taken back: pass more inputs, or more minutes"
        third = max(1, len(seen) // 3)
        falls = len(seen) >= 30 and sum(seen[-third:]) < 0.9 * sum(seen[-2 * third : -third])
        return "the distance was still falling at the end: more minutes would buy more" if falls else ""

    @torch.no_grad()
    def _renew_statistics(self) -> None:
        """Give the dense network, whose weights have changed, statistics that fit them, if that brings it nearer."""
        layers, kept = norm_layers(self._model), read_statistics(norm_layers(self._teacher))
        teacher, ours = (estimated(network, self._sample) for network in (self._teacher, self._model))
        before, as_it_is = read_statistics(layers), self._distance()
        write_statistics(layers, paired_statistics(layers, kept, teacher, ours))
        if self._distance() > as_it_is:
            write_statistics(layers, before)

    def _distances(self, stage: str) -> tuple[float, ...]:
        with self._stage(stage):
            return self._now()

    def _now(self) -> tuple[float, ...]:
        """The distances as the model is now."""
        return tuple(self._score(sparsity) for sparsity in LOOKED_AT)

    @torch.no_grad()
    def _score(self, sparsity: float) -> float:
        """The distance of the outputs at `sparsity`, with statistics of its own."""
        live = LiveModel(self._model, self._plan, self._scope, "raw")
        live.go(pruned_state(sparsity))
        try:
            live.calibrate(self._few)
            return self._distance()
        finally:
            live.go(DENSE)

    @torch.no_grad()
    def _distance(self) -> float:
        """The distance of the outputs as the model is now."""
        pairs = zip(self._few, self._lessons, strict=True)
        found = [float(output_distance(run_batch(self._model, batch), lesson)) for batch, lesson in pairs]
        return sum(found) / len(found)

    @contextmanager
    def _stage(self, name: str) -> Iterator[list[str]]:
        began, remark = time.monotonic(), list[str]()
        self._tell(name, "")
        yield remark
        self._end(name, began, ", ".join(filter(None, remark)))

    def _end(self, name: str, began: float, remark: str) -> None:
        self._stages.append(FitStage(name, time.monotonic() - began, remark))

    def _tell(self, stage: str, note: str, over: float | None = None) -> None:
        if self._progress is not None:
            self._progress(stage, min(1.0, (time.monotonic() - self._began) / self._seconds), note)


def _nearer(now: Sequence[float], before: Sequence[float]) -> bool:
    """Whether distances have fallen, each in parts of what it was."""
    return sum(new / (old + EASE) for new, old in zip(now, before, strict=True)) < sum(
        old / (old + EASE) for old in before
    )


def warn_of_few(inputs: int) -> None:
    """Say that a network overfits to so few inputs."""
    message = f"a fit to {inputs} inputs overfits: pass {FEW} or more, 1,000 are better; labels are not needed"
    warnings.warn(message, UserWarning, stacklevel=5)


@torch.no_grad()
def _lessons(teacher: nn.Module, sample: Sequence[Any]) -> list[Any]:
    """The teacher's outputs; an error if they are not finite."""
    lessons = []
    for number, batch in enumerate(sample):
        lessons.append(run_batch(teacher, batch))
        tensors = output_tensors(lessons[-1])
        if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
            raise PofError(f"batch {number} gives outputs with NaN or inf: look for NaN or inf in the inputs")
    return lessons


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
