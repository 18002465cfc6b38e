"""A pass of a training loop on pruned weights: the building block of every method that trains on them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from pof.checks import check_choice
from pof.elastic.batch_statistics import StateStatistics
from pof.elastic.live_model import forget_casts
from pof.elastic.pass_weight import Fill, PassWeight
from pof.errors import WeightsChangedError
from pof.planning.name_globs import as_globs
from pof.planning.pruning_plan import plan
from pof.planning.wrappers import unwrap
from pof.ranking.ranked_weight import Counts, RankedWeight
from pof.ranking.shares import band_counts
from pof.ranking.sparsity_state import Magnitudes, Scope, State, pruned_state
from pof.sphere.compiler_guard import uncompiled

Prepare = Callable[[Sequence[PassWeight]], list[Fill]]
"""Finds out what each weight is inside a block, and returns who writes it."""


class PrunedPass:
    """Puts pruned weights into a model for a block, and the dense ones back after it, bit for bit.

    Make one per training loop: its plan and memory are kept between steps. Each block ranks the weights as they are
    when it begins. If the model's layers have changed since the last block, the plan is made again.

    Args:
        model: any module.
        scope: as in `Elastic`.
        magnitudes: as in `Elastic`.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        sparsities: as in `Elastic`.
        masked: as in `pof.pruned`.
        keep_statistics: whether BatchNorm statistics that a pass updates stay updated. If not, they are put back too.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        scope: Scope = "layer",
        magnitudes: Magnitudes = "raw",
        include: Iterable[str] = (),
        exclude: Iterable[str] = (),
        sparsities: Mapping[str, float] | None = None,
        masked: bool = False,
        keep_statistics: bool = False,
    ) -> None:
        check_choice(scope, "scope", ("layer", "global"))
        check_choice(magnitudes, "magnitudes", ("raw", "unit"))
        self._globs = {"include": as_globs(include, "include"), "exclude": as_globs(exclude, "exclude")}
        self._scope, self._magnitudes, self._sparsities = scope, magnitudes, sparsities
        self._masked, self._keep_statistics = masked, keep_statistics
        self._weights: list[PassWeight] = []
        self._parts: list[tuple[object, ...]] = []
        self.is_busy = False
        """Whether a block is open."""
        self._plan(model)

    @property
    def names(self) -> list[str]:
        """The names of the weights that are pruned."""
        return [weight.entry.name for weight in self._weights]

    def check_reach(self, sparsity: float) -> None:
        """Raise now, rather than when a schedule gets there, if the scope cannot reach `sparsity`."""
        if self._scope == "global":
            self._counts(self._ranked([weight.parameter.detach() for weight in self._weights]), pruned_state(sparsity))

    @contextmanager
    def at(self, model: nn.Module, sparsity: float, recover_from: float | None = None) -> Iterator[None]:
        """Prune the weights at `sparsity` inside the block, and fill the band from `recover_from` if given."""
        state = pruned_state(sparsity, recover_from)
        with self._block(model, lambda weights: self._in_state(weights, state)):
            yield

    @contextmanager
    def masked_by(self, model: nn.Module, kept: Mapping[str, Tensor]) -> Iterator[None]:
        """Zero the weights inside the block where the masks `kept`, by name, are False, whatever their magnitude."""
        with self._block(model, lambda weights: _masked(weights, kept)):
            yield

    @contextmanager
    def _block(self, model: nn.Module, prepare: Prepare) -> Iterator[None]:
        model, changed = unwrap(model), None
        if not self.is_for(model):
            self._plan(model)
        self.is_busy = True
        try:
            statistics, fills = self._enter(model, prepare)
            hooks = [_mask_gradient(w.parameter) for w in self._weights if self._masked and w.parameter.requires_grad]
            try:
                yield
                both = zip(self._weights, fills, strict=True)
                changed = next((weight.entry.name for weight, fill in both if weight.is_changed(fill)), None)
            finally:
                for hook in hooks:
                    hook.remove()
                self._leave(statistics)
        finally:
            self.is_busy = False
        self._check_layers(model, statistics)
        if changed is not None:
            raise WeightsChangedError(
                f"weight {changed!r} was changed inside pof.pruned, and the change is lost: step the optimizer outside"
            )

    @uncompiled
    def _enter(self, model: nn.Module, prepare: Prepare) -> tuple[StateStatistics, list[Fill]]:
        """Copy the dense weights, then write the pruned ones. Everything that can fail comes before the first write."""
        statistics = StateStatistics(model)
        for weight in self._weights:
            weight.copy_dense()
        fills = prepare(self._weights)
        try:
            for weight, fill in zip(self._weights, fills, strict=True):
                fill(weight.parameter.detach())
                weight.detector.accept()
        except BaseException:
            self._leave(statistics)
            raise
        forget_casts()
        return statistics, fills

    @uncompiled
    def _leave(self, statistics: StateStatistics) -> None:
        """Write everything back to its original place, as far as that still exists."""
        for weight in self._weights:
            weight.write_dense()
        forget_casts()
        if not self._keep_statistics:
            statistics.force_original()

    def _in_state(self, weights: Sequence[PassWeight], state: State) -> list[Fill]:
        ranked = self._ranked([weight.dense for weight in weights])
        counts = self._counts(ranked, state)
        return [partial(weight.write, pair) for weight, pair in zip(ranked, counts, strict=True)]

    def _ranked(self, values: Sequence[Tensor]) -> list[RankedWeight]:
        entries = [weight.entry for weight in self._weights]
        return [
            RankedWeight(value, entry.layout, self._magnitudes, name=entry.name, many_states=False)
            for entry, value in zip(entries, values, strict=True)
        ]

    def _counts(self, ranked: Sequence[RankedWeight], state: State) -> list[Counts]:
        keys = [weight.keys_across() for weight in ranked] if self._scope == "global" else None
        return band_counts([weight.entry.size for weight in self._weights], keys, state)

    def _plan(self, model: nn.Module) -> None:
        chosen = plan(model, **self._globs, sparsities=self._sparsities)
        bare = unwrap(model)
        parameters = chosen.parameters(bare)
        self._weights = [PassWeight(entry, parameters[entry.name]) for entry in chosen]
        self._parts = _parts_of(bare)

    def is_for(self, model: nn.Module) -> bool:
        """Whether the plan is that of `model`, with the layers and weights that it has now."""
        return _parts_of(model) == self._parts and all(weight.is_in(model) for weight in self._weights)

    def _check_layers(self, model: nn.Module, statistics: StateStatistics) -> None:
        for weight in self._weights:
            if not weight.is_in(model):
                raise WeightsChangedError(f"weight {weight.entry.name!r} was replaced inside pof.pruned: do so outside")
        if not statistics.same_layers():
            raise WeightsChangedError("normalisation layers were replaced inside pof.pruned: do so outside")


_LAST: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], PrunedPass]] = WeakKeyDictionary()
"""For each model, the last pass of `pruned` with its settings: a loop asks for the same one at every step."""


@contextmanager
def pruned(
    model: nn.Module,
    sparsity: float,
    *,
    recover_from: float | None = None,
    scope: Scope = "layer",
    magnitudes: Magnitudes = "raw",
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    sparsities: Mapping[str, float] | None = None,
    masked: bool = False,
) -> Iterator[None]:
    """Give `model` pruned weights inside the block, and its dense ones back after it, for training loops.

    Call `backward()` inside the block: the gradients land on the dense weights. BatchNorm statistics are put back too.
    Step the optimiser outside. The plan and memory are kept for the next call with the same settings.

    Args:
        model: any module.
        sparsity: as in `Elastic.prune`.
        recover_from: fill the band from here to `sparsity`, as in `Elastic.recover`.
        scope: as in `Elastic`.
        magnitudes: as in `Elastic`.
        include: globs as in `pof.plan`.
        exclude: globs as in `pof.plan`.
        sparsities: as in `Elastic`.
        masked: whether weights that are zero inside the block get no gradient from it, as in `nested`. Without the mask
            they get one too (straight-through), and may come back. If a whole filter is pruned, its BatchNorm divides
            by almost nothing and that gradient explodes: networks with depthwise layers need the mask.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(8, 4)
        >>> with pruned(model, 0.75):
        ...     model(torch.ones(1, 8)).sum().backward()
        ...     int((model.weight == 0).sum())
        24
        >>> int((model.weight == 0).sum())
        0
    """
    pruned_state(sparsity, recover_from)
    globs = (as_globs(include, "include"), as_globs(exclude, "exclude"))
    fixed = tuple(sparsities.items()) if isinstance(sparsities, Mapping) else sparsities
    settings = (scope, magnitudes, *globs, fixed, masked)
    bare = unwrap(model) if isinstance(model, nn.Module) else model
    known, found = _LAST.get(bare, ((), None)) if isinstance(bare, nn.Module) else ((), None)
    # A block inside another one with the same settings needs memory of its own.
    if found is None or known != settings or found.is_busy or not found.is_for(bare):
        found = PrunedPass(
            bare,
            scope=scope,
            magnitudes=magnitudes,
            include=globs[0],
            exclude=globs[1],
            sparsities=sparsities,
            masked=masked,
        )
        _LAST[bare] = (settings, found)
    with found.at(bare, sparsity, recover_from):
        yield


def _parts_of(model: nn.Module) -> list[tuple[object, ...]]:
    """The modules of a model and their parameters: a plan is right as long as they are the same."""
    return [(id(module), type(module), *map(id, module._parameters.values())) for module in model.modules()]


def _masked(weights: Sequence[PassWeight], kept: Mapping[str, Tensor]) -> list[Fill]:
    return [partial(_fill_masked, weight.dense, kept[weight.entry.name]) for weight in weights]


def _fill_masked(dense: Tensor, kept: Tensor, out: Tensor) -> None:
    with torch.no_grad():
        out.copy_(dense).masked_fill_(~kept, 0.0)


def _mask_gradient(weight: nn.Parameter) -> RemovableHandle:
    """From now on, zero the gradient wherever `weight` is zero when the gradient is computed."""
    handle: RemovableHandle = weight.register_hook(lambda gradient: gradient.masked_fill(weight.detach() == 0, 0.0))
    return handle
