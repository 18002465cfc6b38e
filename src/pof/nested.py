"""Nested training in anyone's loop: every step also trains the network that pruning would leave.

    g  = gradient of L(w)                                         the clean pass
    w' = w + rho * g                                              uphill, as in CrAM; rho = 0 leaves it out
    m  = the largest (1 - s) * n magnitudes of w',  s drawn from [low, high], closer to high if skew > 1
    g' = gradient of (1 - d) * L(w' * m) + d * T^2 * KL(the clean pass || this one),   same batch, outputs / T
    .grad = g + weight * g' * m

In a share `bands` of the steps the second pass runs the recovered network instead: the band of w' from `low` to s is
filled with alpha * sign, and g' is masked only below `low`. BatchNorm statistics are those of the clean pass. With a
`teacher`, both passes use the loss of g' and learn from a copy of the original network; then a share `clean` of the
steps is enough for the clean pass.

Reference: none; it combines CrAM's step (A. Peste et al., 2023) with distillation from the dense network in that step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pof.checks import check_choice, check_not_negative, check_share, check_whole
from pof.elastic.distillation import DenseTeacher, RunPass, check_teaching, divergence
from pof.elastic.pruned_pass import PrunedPass
from pof.elastic.second_pass import random_states, second_pass, step_generator
from pof.errors import PofError
from pof.planning.wrappers import unwrap
from pof.ranking.sparsity import check_sparsity
from pof.ranking.sparsity_state import Scope

Loss = Callable[[], Tensor | tuple[Tensor, Tensor]]
"""Computes the loss of the current batch with the model's current weights, or the loss and the logits."""


@dataclass(frozen=True)
class NestedSettings:
    """The range of sparsities, how they are drawn, and what the second pass learns from."""

    low: float = 0.5
    high: float = 0.9
    skew: float = 2.0
    distill: float = 0.5
    temperature: float = 1.0
    rho: float = 0.0
    bands: float = 0.1
    scope: str = "layer"
    weight: float = 1.0
    teacher: bool = False
    clean: float = 1.0

    def __post_init__(self) -> None:
        if check_sparsity(self.low, "low") > check_sparsity(self.high, "high"):
            raise PofError(f"low={self.low:g} must not exceed high={self.high:g}: swap them")
        check_not_negative(self.skew, "skew", "1 draws evenly, 2 closer to high")
        check_teaching(self.distill, self.temperature)
        check_share(self.clean, "clean", "the share of steps that have a clean pass too")
        if self.clean < 1 and not self.teacher:
            raise PofError(
                f"clean={self.clean:g} needs teacher=true: without a clean pass there is nothing to learn from"
            )
        check_share(self.bands, "bands", "the share of steps with a recovered second pass")
        check_not_negative(self.weight, "weight", "it scales the second pass's gradient, and 1 leaves it as it is")
        check_not_negative(self.rho, "rho", "0 for no step uphill")
        check_choice(self.scope, "scope", ("layer", "global"))


class Nested:
    """Runs two passes per step, so that one network serves every sparsity up to `high`. The weights stay dense.

    Args:
        model: any module; it is not changed between steps.
        low: the lowest sparsity of a second pass, and where the band of a recovered one begins; 0.5 by default, or
            `high` if that is less.
        high: the highest sparsity of a second pass.
        skew: 1 draws sparsities evenly, 2 draws them closer to `high`.
        distill: the share of the second pass's loss that is learnt from the clean pass, if the callable of `backward`
            returns the logits too.
        temperature: logits are divided by it before they are compared.
        rho: how far uphill the second pass is, along the gradients in `.grad` after the clean pass.
        bands: the share of steps whose second pass runs a recovered network.
        scope: as in `Elastic`; prune with the same scope afterwards.
        weight: the factor of the second pass's gradients.
        teacher: learn from a copy of the network as it is now, instead of from the clean pass.
        clean: the share of steps that have a clean pass; less than 1 needs `teacher`.
        seed: the seed of the sparsities drawn. All ranks of a distributed run must have the same.

    Example:
        >>> from torch.nn import functional as F
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> nested = Nested(model, high=0.9)
        >>> x, y = torch.randn(32, 8), torch.randint(4, (32,))
        >>> for _ in range(2):
        ...     optimizer.zero_grad()
        ...     loss = nested.backward(lambda: F.cross_entropy(model(x), y))
        ...     optimizer.step()
        >>> nested.step
        2
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        low: float | None = None,
        high: float = 0.9,
        skew: float = 2.0,
        distill: float = 0.5,
        temperature: float = 1.0,
        rho: float = 0.0,
        bands: float = 0.1,
        scope: Scope = "layer",
        weight: float = 1.0,
        teacher: bool = False,
        clean: float = 1.0,
        seed: int = 0,
    ) -> None:
        if low is None:
            low = min(NestedSettings.low, check_sparsity(high, "high"))
        self.settings = NestedSettings(low, high, skew, distill, temperature, rho, bands, scope, weight, teacher, clean)
        self._part = 0
        self.step = 0
        """How many optimiser steps `backward` has made the gradients of."""
        self.pruned_loss: Tensor | None = None
        """The loss of the last second pass."""
        self._seed = seed
        self._pruned = PrunedPass(model, scope=scope, masked=True)
        self._pruned.check_reach(high)
        self._model = unwrap(model)
        self._teacher = DenseTeacher(model, distill if teacher else 0.0, temperature)

    def backward(
        self,
        loss: Loss,
        backward: Callable[[Tensor], object] = torch.Tensor.backward,
        *,
        parts: int = 1,
        loss_scale: float = 1.0,
    ) -> Tensor:
        """Add the gradients of a clean pass and of a pruned one to `.grad`; return the loss of the first, detached.

        Args:
            loss: computes the loss of the batch, or a pair (loss, logits), with the classes in the last dimension. With
                logits, the second pass also learns from them. It is called once per pass, and must run the model each
                time.
            backward: called with the loss in place of `loss.backward()`, such as `accelerator.backward` or
                `lambda loss: scaler.scale(loss).backward()`.
            parts: how many calls make up one optimiser step, for gradients that are accumulated over parts of a batch.
                The loss is divided by it here, so do not divide it yourself, and all parts have the same sparsity.
                (`accelerator.backward` divides by itself: leave `parts` at 1 with it.)
            loss_scale: the factor by which `backward` scales the loss, such as `scaler.get_scale()`; only needed for
                `rho`.
        """
        if not callable(loss):
            raise PofError(
                f"loss is a {type(loss).__name__}: pass a callable that computes it, nested.backward(lambda: ...)"
            )
        check_whole(parts, "parts", "how many calls make up one optimiser step")
        found = self.two_passes(self.step, _ClosurePass(loss, backward, self._model, parts), loss_scale)
        self._part += 1
        if self._part >= parts:
            self.step, self._part = self.step + 1, 0
        return found

    def two_passes(self, step: int, run_pass: RunPass, loss_scale: float = 1.0) -> Tensor:
        """Run the clean pass of `step` and one at pruned weights; their gradients are added. Returns the loss."""
        settings, (sparsity, recover_from) = self.settings, self._draw(step)
        random = random_states(self._model)
        loss = None
        if int((step + 1) * settings.clean) > int(step * settings.clean):
            loss = self._teacher.taught(run_pass)
        with (
            second_pass(self._model, random, settings.rho / loss_scale, settings.weight),
            self._pruned.at(self._model, sparsity, recover_from),
        ):
            self.pruned_loss = run_pass(settings.distill, self._teacher.network, settings.temperature)
        return self.pruned_loss if loss is None else loss

    def state_dict(self) -> dict[str, Any]:
        """The number of steps, and the teacher if there is one, to save in a checkpoint."""
        return {"step": self.step, **self._teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._teacher.load_state_dict(state)
        self.step = int(state["step"])

    def _draw(self, step: int) -> tuple[float, float | None]:
        """The sparsity of this step's second pass, and where its band begins, if it has one."""
        settings = self.settings
        where, which = torch.rand(2, generator=step_generator(self._seed, step), dtype=torch.float64).tolist()
        sparsity = settings.high - (settings.high - settings.low) * where**settings.skew
        return sparsity, settings.low if which < settings.bands and sparsity > settings.low else None


class _ClosurePass:
    """A `RunPass` made of a callable that computes the loss."""

    def __init__(self, loss: Loss, backward: Callable[[Tensor], object], model: nn.Module, parts: int) -> None:
        self._loss, self._backward, self._model, self._parts = loss, backward, model, parts
        self._first: Tensor | None = None
        """The logits of the first pass."""
        self._taught: Tensor | None = None

    def __call__(self, distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
        """Run one forward and backward pass."""
        with _Inputs(self._model) as inputs:
            loss, logits = _loss_and_logits(self._loss())
        if teacher is not None and distill:
            if logits is None:
                raise PofError("teacher=True compares logits: let the callable return (loss, logits)")
            if self._taught is None:
                self._taught = inputs.logits_of(teacher)
        wanted = self._first if teacher is None else self._taught
        if distill and wanted is not None and logits is not None:
            loss = loss.lerp(divergence(logits, wanted, temperature).to(loss.dtype), distill)
        self._backward(loss if self._parts == 1 else loss / self._parts)
        if self._first is None and logits is not None:
            self._first = logits.detach()
        return loss.detach()


def _loss_and_logits(found: Any) -> tuple[Tensor, Tensor | None]:
    """What a callable returned, checked."""
    pair = found if isinstance(found, tuple) else (found, None)
    if len(pair) != 2 or not (pair[1] is None or isinstance(pair[1], Tensor)):
        raise PofError("the callable returned something else than a loss or (loss, logits), with logits as a tensor")
    loss, logits = pair
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shape = f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""
        raise PofError(
            f"the callable gave {type(loss).__name__}{shape}: let it return the loss, one number, or (loss, logits)"
        )
    return loss, logits


class _Inputs:
    """Records the inputs that a model is called with inside the block, so that a teacher can be given the same."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def __enter__(self) -> "_Inputs":
        self._handle = self._model.register_forward_pre_hook(self._note, with_kwargs=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._seen.append((args, kwargs))

    @torch.no_grad()
    def logits_of(self, teacher: nn.Module) -> Tensor:
        """The logits of `teacher` for the same inputs."""
        if len(self._seen) != 1:
            often = "did not run the model" if not self._seen else f"ran the model {len(self._seen)} times"
            raise PofError(f"the callable {often}: with a teacher, let it compute the loss from one model(...)")
        args, kwargs = self._seen[0]
        found = teacher(*args, **kwargs)
        logits = found if isinstance(found, Tensor) else getattr(found, "logits", None)
        if not isinstance(logits, Tensor):
            raise PofError(f"the teacher gives a {type(found).__name__}, which has no logits: use teacher=False")
        return logits
