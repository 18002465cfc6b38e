"""The training loop. It knows batches, gradients and steps, and no method by name."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from pof.data.protocol import Dataset
from pof.elastic.distillation import divergence
from pof.errors import PofError
from pof.methods import Method, RunPass, Span
from pof.trainer.events import StepDone
from pof.trainer.learning_rate import learning_rate
from pof.trainer.recipe import Recipe

CHECK_EVERY = 10
"""Steps between two reads of the loss; each read waits for the device."""


class Trainer:
    """The parts of a run, and the steps that move them.

    Args:
        recipe: says what to do.
        model: the model, as `accelerator` prepared it.
        optimizer: the optimiser of the model.
        method: the training method, made for both.
        data: the dataset.
        accelerator: the engine that places and synchronises everything.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        data: Dataset,
        accelerator: Accelerator,
    ) -> None:
        self._recipe = recipe
        self._model = model
        self._optimizer = optimizer
        self._method = method
        self._data = data
        self._accelerator = accelerator
        self._device = accelerator.device
        self._span = span_of(recipe, data)
        # The last loss keeps its graph alive until the next forward pass is done. If nothing of a step were left, the
        # allocator would return all memory, and each step would fault it in again (7,000 faults, 20 ms or more).
        self._held: Tensor | None = None

    def steps(self, start: int) -> Iterator[StepDone]:
        """Train from step `start` to the end, and yield after every step, when everything is consistent."""
        span, recipe = self._span, self._recipe
        images, total, unseen = 0, torch.zeros((), device=self._device), 0
        shown, figures = float("nan"), self._method.figures()
        whole, steps = 0.0, 0
        for step, (inputs, labels) in self._batches(start):
            if step % span.steps_per_epoch == 0:
                whole, steps = 0.0, 0
            rate = learning_rate(recipe.optimizer, step, span.steps, span.steps_per_epoch)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            total = total + self._step(step, inputs, labels)
            unseen += 1
            images += recipe.data.batch
            if (step + 1) % CHECK_EVERY == 0 or (step + 1) % span.steps_per_epoch == 0:
                shown = float(self._accelerator.reduce(total, "mean")) / unseen
                whole, steps = whole + shown * unseen, steps + unseen
                total, unseen = torch.zeros((), device=self._device), 0
                if not shown < float("inf"):
                    raise PofError(
                        f"the loss is {shown} at step {step}: lower optimizer.learning_rate or method settings"
                    )
                figures = self._method.figures()
            mean = whole / steps if steps else shown
            yield StepDone(step + 1, span.steps, step // span.steps_per_epoch, shown, mean, rate, images, figures)

    def _batches(self, start: int) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
        span, engine = self._span, self._accelerator
        for epoch in range(start // span.steps_per_epoch, span.steps // span.steps_per_epoch):
            first = max(0, start - epoch * span.steps_per_epoch)
            batches = self._data.train_batches(
                self._recipe.data.batch,
                seed=self._recipe.run.seed,
                epoch=epoch,
                start=first,
                rank=engine.process_index,
                ranks=engine.num_processes,
            )
            yield from enumerate(batches, start=epoch * span.steps_per_epoch + first)

    def _step(self, step: int, inputs: Tensor, labels: Tensor) -> Tensor:
        """Make one optimiser step; return the loss."""
        self._seed(step)
        self._model.train()
        loss = self._method.gradients(step, self._pass(inputs, labels))
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._method.after_step(step)
        return loss

    def _seed(self, step: int) -> None:
        """Seed by the step, so that a resumed run draws the same random numbers (for dropout, say)."""
        seed, device = hash((self._recipe.run.seed, step, self._accelerator.process_index)) % 2**63, self._device.type
        # torch.manual_seed records a stack trace for each absent kind of device: a millisecond and a leak per step.
        torch.default_generator.manual_seed(seed)
        if device != "cpu":
            getattr(torch, device).manual_seed(seed)

    def _pass(self, inputs: Tensor, labels: Tensor) -> RunPass:
        """Return the forward and backward pass of one batch, in as many parts as the recipe says."""
        engine, parts = self._accelerator, self._recipe.run.accumulate
        inputs, labels = inputs.to(engine.device), labels.to(engine.device)
        if self._recipe.model.channels_last and inputs.dim() == 4:
            inputs = inputs.to(memory_format=torch.channels_last)
        batches = list(zip(inputs.chunk(parts), labels.chunk(parts), strict=True))

        first: list[Tensor] = []
        taught: dict[int, Tensor] = {}

        def run_pass(distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
            total = torch.zeros((), device=engine.device)
            for number, (images, targets) in enumerate(batches, start=1):
                last = number == len(batches)
                # Ranks exchange gradients once, with the last part.
                with nullcontext() if last else engine.no_sync(self._model), engine.autocast():
                    outputs = self._model(images)
                    loss = F.cross_entropy(outputs, targets)
                    if distill:
                        if teacher is not None and number not in taught:
                            taught[number] = _outputs(teacher, images)
                        wanted = first[number - 1] if teacher is None else taught[number]
                        loss = loss.lerp(divergence(outputs, wanted, temperature), distill)
                    loss = loss * (len(images) / len(inputs))
                    self._held = loss
                    engine.backward(loss)
                if len(first) < len(batches):
                    first.append(outputs.detach())
                total += loss.detach()
            return total

        return run_pass


@torch.no_grad()
def _outputs(teacher: nn.Module, images: Tensor) -> Tensor:
    found: Tensor = teacher(images)
    return found


def span_of(recipe: Recipe, data: Dataset) -> Span:
    """Return the length of the run in steps, and its seed."""
    steps_per_epoch = data.train_images // recipe.data.batch
    if steps_per_epoch == 0:
        raise PofError(f"data.batch={recipe.data.batch} is more than the {data.train_images} training images: lower it")
    return Span(recipe.run.epochs * steps_per_epoch, steps_per_epoch, recipe.run.seed)
