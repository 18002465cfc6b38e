"""One run in one folder: it starts, resumes or has finished already, and writes records, checkpoints and weights."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from pof.errors import PofError
from pof.trainer.accelerator import engine_for
from pof.trainer.accuracy_sweep import accuracy, faster_convolutions, sweep
from pof.trainer.checkpoint import read_tree, write_tree
from pof.trainer.events import EpochDone, Show, StateTested, StepDone
from pof.trainer.from_recipe import (
    build_data,
    build_elastic,
    build_method,
    build_model,
    build_optimizer,
    check_fit,
    weights_facts,
)
from pof.trainer.interrupt import Interrupt
from pof.trainer.loop import Trainer, span_of
from pof.trainer.recipe import Recipe
from pof.trainer.run_folder import own_folder
from pof.trainer.run_origin import open_records, origin_of
from pof.trainer.run_records import Records
from pof.trainer.tracking import Tracker
from pof.trainer.weight_files import write_weights

CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Outcome:
    """How a call of `run_recipe` ended."""

    finished: bool
    """False if it was interrupted; the same call resumes from there."""
    already: bool
    """Whether it had finished before this call."""
    step: int
    accuracy: float | None = None
    test_images: int = 0
    figures: dict[str, float] = field(default_factory=dict)
    """The method's last figures."""
    table: list[dict[str, Any]] = field(default_factory=list)
    """One row per state: see `pof.trainer.accuracy_sweep.Accuracy`."""


def run_recipe(
    recipe: Recipe, out: str | Path, show: Show = lambda _: None, weights: str | Path | None = None
) -> Outcome:
    """Run `recipe` in the folder `out`, from its last checkpoint if there is one; do nothing if it has finished.

    `weights` is where `model.weights` really are, if not where the recipe says; the run still counts as that recipe's.
    """
    folder = Path(out)
    engine = engine_for(recipe, folder)
    records = open_records(folder, recipe, engine)
    done = records.last("final")
    if done is None:
        # Built before there is a folder, so that a run that cannot start leaves nothing behind.
        run = _Run(recipe, folder, records, engine, weights)
        with own_folder(folder) if engine.is_main_process else nullcontext():
            engine.wait_for_everyone()
            done = records.last("final")
            if done is None:
                return run.go(show)
            # Another process has finished it in the meantime.
    if not (folder / WEIGHTS).exists():
        raise PofError(
            f"the run in {str(folder)!r} has finished, but its {WEIGHTS} is gone: delete the folder to start over"
        )
    keys = ("step", "accuracy", "test_images", "figures", "table")
    return Outcome(finished=True, already=True, **{key: done[key] for key in keys})


class _Run:
    """A run that has not finished yet."""

    def __init__(
        self, recipe: Recipe, folder: Path, records: Records, engine: Accelerator, weights: str | Path | None = None
    ) -> None:
        torch.manual_seed(recipe.run.seed)
        self._recipe, self._folder, self._records, self._engine = recipe, folder, records, engine
        self._data = build_data(recipe.data)
        self._span = span_of(recipe, self._data)
        # A checkpoint has its own weights; the file that the run started from may be gone.
        resumes = (folder / CHECKPOINT).exists()
        start = replace(recipe.model, weights="" if resumes else str(weights or recipe.model.weights))
        self._model = build_model(start, self._data.classes).to(engine.device)
        check_fit(self._model, self._data, (recipe.model.name, recipe.data.name))
        self._optimizer = build_optimizer(recipe, self._model)
        wrapped_model, wrapped_optimizer = engine.prepare(self._model, self._optimizer)
        self._method = build_method(recipe, self._model, wrapped_optimizer, self._span)
        self._trainer = Trainer(recipe, wrapped_model, wrapped_optimizer, self._method, self._data, engine)
        self._epoch_began = (time.perf_counter(), 0)

    def go(self, show: Show) -> Outcome:
        start = self._resume()
        tracker = Tracker(self._engine, self._recipe, show, self._span.steps_per_epoch)
        show = tracker.show
        self._record("resume" if start else "start", step=start, **origin_of(self._recipe))
        every = self._recipe.run.checkpoint_steps or self._span.steps_per_epoch
        with Interrupt() as interrupt, faster_convolutions(self._engine.device):
            for progress in self._trainer.steps(start):
                show(progress)
                if progress.step % self._span.steps_per_epoch == 0:
                    show(self._end_epoch(progress))
                stop = self._on_any_rank(interrupt.seen)
                if stop or progress.step % every == 0 or progress.step == self._span.steps:
                    self._save(progress.step)
                if stop and progress.step < self._span.steps:
                    self._engine.end_training()
                    return Outcome(False, False, progress.step)
        outcome = self._finish(show)
        tracker.finish(outcome.step, outcome.accuracy or 0.0, outcome.table)
        return outcome

    def _on_any_rank(self, flag: bool) -> bool:
        """Whether `flag` is set on any rank, so that all stop at the same step."""
        if self._engine.num_processes == 1:
            return flag
        mine = torch.tensor(float(flag), device=self._engine.device)
        return bool(self._engine.reduce(mine, "sum") > 0)

    def _end_epoch(self, progress: StepDone) -> EpochDone:
        epoch = progress.step // self._span.steps_per_epoch
        now, (then, images) = time.perf_counter(), self._epoch_began
        figures = {
            "loss": progress.epoch_loss,
            "learning_rate": progress.learning_rate,
            "images_per_second": round((progress.images - images) / (now - then), 1),
            **self._method.figures(),
        }
        self._record("epoch", epoch=epoch, **figures)
        if epoch % self._recipe.run.evaluate_every == 0 and progress.step < self._span.steps:
            figures["accuracy"] = accuracy(self._model, self._data)
            self._record("evaluation", epoch=epoch, accuracy=figures["accuracy"])
        self._epoch_began = (time.perf_counter(), progress.images)
        return EpochDone(epoch, self._recipe.run.epochs, figures)

    def _finish(self, show: Show) -> Outcome:
        figures = self._method.figures()
        self._method.finish()
        if self._engine.is_main_process:
            metadata = {"pof": version("pof"), **weights_facts(self._recipe)}
            write_weights(self._model, self._folder / WEIGHTS, metadata)
        table = self._test(show)
        final: dict[str, Any] = {
            "step": self._span.steps,
            "accuracy": accuracy(self._model, self._data),
            "test_images": self._data.test_images,
            "figures": figures,
            "table": table,
        }
        self._record("final", **final)
        return Outcome(finished=True, already=False, **final)

    def _test(self, show: Show) -> list[dict[str, Any]]:
        """Test the network in all states of the recipe's table; every rank does this, so that none waits too long."""
        table, rows = self._recipe.table, []
        states, scopes = table.states(), self._recipe.tested_scopes
        for scope in scopes:
            try:
                elastic = build_elastic(self._recipe, self._model, scope)
            except PofError:
                return []  # nothing in this network can be pruned
            for found in sweep(self._model, elastic, self._data, states, calibrate=table.calibrate):
                rows.append(found.as_record())
                show(StateTested(str(found.state), len(rows), len(states) * len(scopes)))
        return rows

    def _save(self, step: int) -> None:
        for name, weight in self._model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                raise PofError(
                    f"{name} is NaN or inf after step {step}: lower optimizer.learning_rate; the last checkpoint stays"
                )
        if self._engine.is_main_process:
            tree = {
                "step": step,
                "recipe": self._recipe.hash,
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "method": self._method.state_dict(),
                "scaler": None if self._engine.scaler is None else self._engine.scaler.state_dict(),
            }
            write_tree(self._folder / CHECKPOINT, tree)

    def _resume(self) -> int:
        path = self._folder / CHECKPOINT
        if not path.exists():
            return 0
        tree = read_tree(path)
        if tree.get("recipe") not in {self._recipe.hash, *self._records.hashes()}:
            raise PofError(f"{str(path)!r} is of another recipe: choose another --out, or delete it to start over")
        self._model.load_state_dict(tree["model"])
        self._optimizer.load_state_dict(tree["optimizer"])
        self._method.load_state_dict(tree["method"])
        if self._engine.scaler is not None and tree["scaler"] is not None:
            self._engine.scaler.load_state_dict(tree["scaler"])
        return int(tree["step"])

    def _record(self, kind: str, **values: Any) -> None:
        if self._engine.is_main_process:
            self._records.append(kind, **values)
