"""One fit, stage by stage: a look, the ranking, least squares, training, a last look."""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn

from pof.elastic.batch_statistics import estimated, norm_layers, read_statistics, run_batch, write_statistics
from pof.elastic.half_precision import autocast, half_precision_is_faster
from pof.elastic.output_distance import together
from pof.elastic.paired_statistics import paired_statistics
from pof.errors import warn
from pof.fitting.fit_checkpoint import FitCheckpoint
from pof.fitting.fit_report import FitReport, FitStage, tensors_of
from pof.fitting.input_batches import first_inputs, later_batches, size_of
from pof.fitting.kept_share import SHARES, keep_best_share
from pof.fitting.layer_inputs import RefittableLayer, refittable_layers
from pof.fitting.nested_distillation import DistillationSettings, distil
from pof.fitting.ranking_trial import balance_if_it_helps
from pof.fitting.refitting import refit
from pof.fitting.state_distances import StateDistances
from pof.planning.pruning_plan import Plan
from pof.ranking.sparsity_state import Scope

FEW = 128
"""With fewer inputs than this, a fit warns."""
STATES = (0.3, 0.5, 0.7, 0.8, 0.9)
"""The sparsities that a network is fitted to at most."""
LOOKED_AT = (0.0, *STATES)
"""The sparsities whose distances are reported; those of the dense network too, whose weights change."""
BEYOND = 0.02
"""Training goes so much beyond the highest sparsity that is served."""
SAMPLED, MEASURED, LEAST_MEASURED = 512, 64, 32
"""How many inputs statistics and least squares are taken from at most, and how many distances at most and at least."""
MOST_ASIDE = 0.25
"""The inputs for measuring are set aside if they are at most this share of all."""
LOOK_TIME, SAMPLE_TIME, REFIT_TIME = 0.05, 0.05, 0.3
"""The share of the time that a look may take, one pass over the sample, and all of least squares."""
LEAST_SECONDS = 20.0
"""Training that is shorter than this is not begun."""
WORSE, SAME = 1.05, 0.01
"""A sparsity is further off than before if its distance has grown by this factor and this much more."""

Progress = Callable[[str, float, str], None]
"""Told as a fit goes on: the stage, the share of the time that is over, and a note."""


class FittingRun:
    """Fits `model` in place, within `seconds`.

    Args:
        model: a module in evaluation mode.
        plan: its weights that are pruned.
        globs: what the plan includes and excludes.
        batches: unlabelled inputs.
        scope: how weights are ranked.
        seconds: the time to take.
        progress: told how far it is.
    """

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
        few, self._inputs = first_inputs(batches, LEAST_MEASURED)
        self._half = half_precision_is_faster(model, few[0])
        each = self._seconds_per_input(few)
        few, _ = first_inputs(batches, _between(LEAST_MEASURED, LOOK_TIME * seconds / each / 12, MEASURED))
        self._held_out = 0
        aside = sum(map(size_of, islice(batches, len(few))))
        if aside <= MOST_ASIDE * self._inputs:
            self._batches = later_batches(batches, len(few))
            self._held_out, self._inputs = aside, self._inputs - aside
        if self._inputs < FEW:
            _warn_of_few(self._inputs)
        self._few = few
        self._distances = StateDistances(model, plan, scope, few, self._half)
        self._sample, _ = first_inputs(self._batches, _between(MEASURED, SAMPLE_TIME * seconds / each, SAMPLED))

    def run(self, checkpoint: FitCheckpoint | None) -> FitReport:
        """Run all stages, and return the report."""
        with self._stage("first look"):
            before = self._distances.at(LOOKED_AT)
        layers, others = refittable_layers(self._model, self._plan)
        errors: tuple[Any, Any] = ({}, {})
        if checkpoint is not None and checkpoint.load(tensors_of(self._teacher), tensors_of(self._model)):
            self._served = self._sparsities_to_serve(self._distances.at(STATES))
            self._end("least squares", time.monotonic(), "taken from the checkpoint")
        else:
            self._rank(layers, before)
            errors = self._refit(layers)
            others = {**others, **{each.name: "it saw no input" for each in layers if each.name not in errors[0]}}
            self._renew_statistics()
            if checkpoint is not None:
                checkpoint.save(tensors_of(self._teacher), tensors_of(self._model))
        advice = self._train()
        with self._stage("last look"):
            after = self._distances.at(LOOKED_AT)
        worse = [
            f"{s:.0%}" for s, old, new in zip(LOOKED_AT, before, after, strict=True) if s and new > WORSE * old + SAME
        ]
        if worse:
            advice = f"further off than before at {', '.join(worse)}: pass more inputs, or report.undo()"
        stages = tuple(self._stages)
        return FitReport(
            self._inputs, self._scope, LOOKED_AT, before, after, stages, *errors, others, advice, self._held_out
        )

    def _rank(self, layers: Sequence[RefittableLayer], before: Sequence[float]) -> None:
        """Choose the scale of the rows, and which sparsities to serve."""
        with self._stage("ranking") as remark:
            lost = max(self._distances.of_blind, *before)

            def told(distances: Sequence[float]) -> float:
                """How much nearer outputs are, at all sparsities together, than those of a network that is lost."""
                return sum(max(0.0, lost - distance) for distance in distances)

            name = balance_if_it_helps(
                self._model,
                self._teacher,
                self._plan,
                layers,
                self._few,
                told(before[1:]),
                lambda: told(self._distances.at(STATES)),
            )
            remark.append(name or "magnitudes as they are")
            self._served = self._sparsities_to_serve(self._distances.at(STATES) if name else before[1:])
        # Statistics are compared with the teacher's, so it has the same scales; it computes what it did.
        self._teacher = copy.deepcopy(self._model).requires_grad_(False)

    def _sparsities_to_serve(self, distances: Sequence[float]) -> tuple[float, ...]:
        """Those that are less than half as far off as the mean output is, and the first one that is lost; two or more.

        What lies far beyond cannot be brought back, and its errors would spoil the rest.
        """
        lost = self._distances.of_blind / 2
        for count, distance in enumerate(distances, 1):
            if count > 1 and distance > lost:
                return STATES[:count]
        return STATES

    def _refit(self, layers: Sequence[RefittableLayer]) -> tuple[Any, Any]:
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
                self._half,
            )
            remark.append(f"{sum(map(size_of, self._sample))} inputs, up to {self._served[-1]:.0%}")
        return errors

    def _train(self) -> str:
        """Distil for the time that is left, except what the closing measurements need."""
        # Each share of the way that is tried needs a look, and statistics that take about as long.
        looks = 2 + 2 * len(SHARES) if self._held_out else 1
        left = self._seconds - (time.monotonic() - self._began) - looks * self._stages[0].seconds
        if left < LEAST_SECONDS:
            needed = (self._seconds - left + LEAST_SECONDS) / 60
            return f"no training, as little time was left: minutes={math.ceil(10 * needed) / 10:g} would begin it"
        came = {name: tensor.clone() for name, tensor in tensors_of(self._model).items()}
        distances = self._distances.at(LOOKED_AT)
        with self._stage("training") as remark:
            seen: list[float] = []

            def report(over: float, distance: float) -> None:
                seen.append(distance)
                self._tell("training", f"distance {sum(seen[-20:]) / len(seen[-20:]):.3g}")

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
                half=self._half,
                report=report,
            )
            remark.append(f"{steps} steps")

        def score() -> float:
            self._renew_statistics()
            return together(self._distances.at(LOOKED_AT), distances)

        if not self._held_out:
            self._renew_statistics()
        else:
            with self._stage("how much of it to keep") as remark:
                share = keep_best_share(self._model, came, score, together(distances, distances))
                remark.append(f"{share:.0%} of the way")
            if not share:
                return "training brought new inputs no nearer and was taken back: pass more inputs"
        third = max(1, len(seen) // 3)
        falls = len(seen) >= 30 and sum(seen[-third:]) < 0.9 * sum(seen[-2 * third : -third])
        return "the distance was still falling at the end: more minutes would buy more" if falls else ""

    @torch.no_grad()
    def _renew_statistics(self) -> None:
        """Give the dense network, whose weights have changed, statistics that fit them, if that brings it nearer."""
        layers, kept = norm_layers(self._model), read_statistics(norm_layers(self._teacher))
        with autocast(self._model, self._half):
            teacher, ours = (estimated(network, self._sample) for network in (self._teacher, self._model))
        before, as_it_is = read_statistics(layers), self._distances.now()
        write_statistics(layers, paired_statistics(layers, kept, teacher, ours))
        if self._distances.now() > as_it_is:
            write_statistics(layers, before)

    @torch.no_grad()
    def _seconds_per_input(self, batches: Sequence[Any]) -> float:
        began = time.monotonic()
        with autocast(self._model, self._half):
            run_batch(self._model, batches[0])
        return max(1e-6, (time.monotonic() - began) / size_of(batches[0]))

    @contextmanager
    def _stage(self, name: str) -> Iterator[list[str]]:
        began, remark = time.monotonic(), list[str]()
        self._tell(name, "")
        yield remark
        self._end(name, began, ", ".join(remark))

    def _end(self, name: str, began: float, remark: str) -> None:
        self._stages.append(FitStage(name, time.monotonic() - began, remark))

    def _tell(self, stage: str, note: str) -> None:
        if self._progress is not None:
            self._progress(stage, min(1.0, (time.monotonic() - self._began) / self._seconds), note)


def _between(least: int, wanted: float, most: int) -> int:
    return max(least, min(int(wanted), most))


def _warn_of_few(inputs: int) -> None:
    """Say that a network overfits to so few inputs."""
    message = f"a fit to {inputs} inputs overfits: pass {FEW} or more, 1,000 are better; labels are not needed"
    warn(message)
