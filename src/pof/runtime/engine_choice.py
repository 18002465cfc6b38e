"""Choose the engine for each layer, for inputs of one size, by timing."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from pof.runtime import torch_run
from pof.runtime.compiled_weights import CompiledWeights
from pof.runtime.execution_plan import ExecutionPlan, ThreadWork
from pof.runtime.execution_steps import UnforeseenError
from pof.runtime.fair_timing import compared, in_turns, took
from pof.runtime.image_geometry import lanes_for
from pof.runtime.model_outputs import largest_deviation
from pof.runtime.program import Layer, Program

ROUNDS = 7
"""How often each engine runs in a comparison."""
MARGIN = 1.05
"""The least speed-up over the plain model for the compiled one to be used."""
SECONDS = 1.5
"""How long the winner and the user's own model take turns, which gives the speed-up that is reported."""
LAYOUT_DEVIATION = 1e-5
"""How far outputs may move with torch's layout: its GroupNorm is less exact in channels last."""
ModelCall = Callable[[], object]
"""Calls the user's own model with the inputs that are compared."""
MOST_BYTES = 1 << 30
"""The most bytes that a block of images may have: the kernels count distances in bytes, in 32 bits."""


@dataclass(frozen=True)
class LayerTime:
    """How one layer runs at one size of input, in milliseconds."""

    name: str
    operation: str
    shape: tuple[int, ...]
    """The shape of its output."""
    sparsity: float
    engine: str
    """The engine that runs it: "sparse" or "torch"."""
    sparse: float | None
    """The time on the sparse kernels; None if they cannot compute it."""
    dense: float
    """The time on torch."""


@dataclass(frozen=True)
class Times:
    """The measured times, in milliseconds."""

    layers: tuple[LayerTime, ...]
    plain: float
    """The user's own model: the median of several calls."""
    compiled: float
    """The same divided by the median speed-up, over pairs of calls in turns."""


Runner = Literal["kernels", "torch", "model"]
"""What runs inputs of one size: a plan with sparse kernels, the fused program on torch, or the user's own model."""


@dataclass(frozen=True)
class EngineChoice:
    """The engines that run inputs of one size."""

    program: Program
    taken: CompiledWeights
    runner: Runner
    plan: ExecutionPlan | None
    """The plan that the kernels run; None for other runners."""
    channels_last: bool
    """Whether torch runs the program faster in its channels-last layout."""

    def earlier(self) -> "EarlierChoice":
        """The choice without its weights, to be remembered."""
        return EarlierChoice(
            self.program, self.runner, None if self.plan is None else self.plan.of_layers(), self.channels_last
        )

    def as_model(self) -> "EngineChoice":
        """The choice to run the user's own model instead."""
        return replace(self, runner="model", plan=None)

    def with_weights(self, taken: CompiledWeights) -> "EngineChoice":
        """The same choice with other weights."""
        return self.earlier().with_weights(taken)

    def run(self, leaves: Sequence[Any], work: Callable[[ExecutionPlan], ThreadWork]) -> tuple[Any, dict[str, Any]]:
        """The outputs for these inputs, in their own memory, and all values by name; for "kernels" and "torch"."""
        values = None
        if self.plan is not None:
            try:
                values = self.plan.run(leaves, work(self.plan))
            except UnforeseenError:
                values = None
        if values is None:
            values = plainly(self.program, self.taken, leaves, channels_last=self.channels_last)
        inputs = {id(leaf) for leaf in leaves}
        return pytree.tree_map(lambda leaf: _own(leaf, values, inputs), self.program.outputs), values

    def times(
        self, leaves: Sequence[Any], work: Callable[[ExecutionPlan], ThreadWork], calls: "UserCalls"
    ) -> tuple["EngineChoice", Times]:
        """Measure how fast the model and each of its layers are now; where nothing is gained, the model itself runs."""
        passed = torch_run.timed(self.program, self.taken.weights, self.taken.constants, leaves, ROUNDS)
        sparse: dict[str, float] = {}
        if self.plan is not None:
            own = _step_times(self.plan, leaves, work(self.plan))
            sparse = {name: own[name] for name in self.plan.sparse if name in own}
        return _judged(self, calls, passed, sparse)


@dataclass(frozen=True)
class EarlierChoice:
    """A choice that was made for other weights: it holds none."""

    program: Program
    runner: Runner
    plan: Callable[[CompiledWeights], ExecutionPlan] | None
    """Makes the plan again."""
    channels_last: bool

    def with_weights(self, taken: CompiledWeights) -> EngineChoice:
        """The choice with present weights."""
        plan = None if self.plan is None else self.plan(taken)
        return EngineChoice(self.program, taken, self.runner, plan, self.channels_last)


class UserCalls(NamedTuple):
    """The calls that are compared: the user's own model, and a compiled one with a choice of engines."""

    model: ModelCall
    compiled: Callable[[EngineChoice], ModelCall]


def choose(
    program: Program,
    taken: CompiledWeights,
    leaves: Sequence[Any],
    threads: int,
    work: Callable[[ExecutionPlan], ThreadWork],
    calls: UserCalls,
) -> tuple[EngineChoice, Times]:
    """Find the fastest engines for these inputs, and measure how fast they are.

    Only what beats the user's own model, called as the user calls it, counts as a gain.
    """
    passed = torch_run.timed(program, taken.weights, taken.constants, leaves, ROUNDS)
    layouts = (False, True) if _may_be_channels_last(program, taken, leaves, passed.values) else (False,)
    plans, times = _plans(program, taken, leaves, threads, work, passed)
    choices = [EngineChoice(program, taken, "torch", None, last) for last in layouts]
    choices += [EngineChoice(program, taken, "kernels", plan, channels_last=False) for plan in plans]
    found = [took(each) for each in in_turns([calls.compiled(choice) for choice in choices], ROUNDS)]
    ranked = list(zip(found, choices, strict=True))
    compiled, chosen = min(ranked[: len(layouts)], key=itemgetter(0))
    if plans:
        sparse, own = min(ranked[len(layouts) :], key=itemgetter(0))
        if compiled.least > MARGIN * sparse.least:
            chosen = own
    return _judged(chosen, calls, passed, times)


def _may_be_channels_last(
    program: Program, taken: CompiledWeights, leaves: Sequence[Any], usual: Mapping[str, Any]
) -> bool:
    """Whether torch computes the same in its channels-last layout, where `usual` has the values in the other one."""
    if program.needs_strides:
        return False
    found = program.returned(plainly(program, taken, leaves, channels_last=True))
    return largest_deviation(found, program.returned(usual)) <= LAYOUT_DEVIATION


def _judged(
    choice: EngineChoice, calls: UserCalls, passed: torch_run.Passed, sparse: Mapping[str, float]
) -> tuple[EngineChoice, Times]:
    """The choice, or the user's own model where that is no slower by the margin; and how fast it is."""
    if choice.runner == "model":
        plain = took(in_turns([calls.model], ROUNDS)[0]).median
        return choice, Times(_layer_times(choice, passed, {}), plain, plain)
    plain, ratio = compared(calls.model, calls.compiled(choice), SECONDS, ROUNDS)
    if ratio < MARGIN:
        choice, ratio = choice.as_model(), 1.0
    return choice, Times(_layer_times(choice, passed, sparse), plain, plain / ratio)


def _plans(
    program: Program,
    taken: CompiledWeights,
    leaves: Sequence[Any],
    threads: int,
    work: Callable[[ExecutionPlan], ThreadWork],
    passed: torch_run.Passed,
) -> tuple[list[ExecutionPlan], dict[str, float]]:
    """Plans worth comparing: all layers that can be sparse, and only those that gain; and the layers' times."""
    shapes = passed.shapes
    candidates = [i.name for i in program.items if isinstance(i, Layer) and _can_be_sparse(i, shapes)]
    if not candidates or program.needs_strides or not all(v.numel() for v in leaves if isinstance(v, Tensor)):
        return [], {}
    whole = ExecutionPlan(program, taken, shapes, candidates, threads)
    try:
        times = _step_times(whole, leaves, work(whole))
        faster = [name for name in candidates if times[name] <= passed.milliseconds[name]]
        plans = [whole, *([] if faster == candidates else [ExecutionPlan(program, taken, shapes, faster, threads)])]
        for plan in plans:
            plan.run(leaves, work(plan))  # an unforeseen value shows up here, not during the timing
    except UnforeseenError:
        return [], {}
    return plans, times


def plainly(program: Program, taken: CompiledWeights, leaves: Sequence[Any], *, channels_last: bool) -> dict[str, Any]:
    """All values, computed by torch alone with the compiled model's weights."""
    weights = taken.weights_last if channels_last else taken.weights
    return torch_run.values_of(program, weights, taken.constants, leaves)


def _own(leaf: Any, values: Mapping[str, Any], inputs: set[int]) -> Any:
    """Copy an output out of buffers and constants into its own memory; an input is returned unchanged."""
    value = values[leaf.name] if hasattr(leaf, "name") else leaf
    if not isinstance(value, Tensor) or id(value) in inputs:
        return value
    return value.clone(memory_format=torch.contiguous_format)


def _can_be_sparse(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the sparse kernels can compute a layer."""
    if layer.name not in shapes or layer.source not in shapes:
        return False
    if layer.kind == "linear":
        return True
    if any(len(shapes.get(name, ())) != layer.dims + 2 for name in (layer.name, *layer.refs())):
        return False
    if layer.residual is not None and shapes[layer.residual] != shapes[layer.name]:
        return False
    images, channels, *sides = shapes[layer.source]
    height, width = (1, *sides)[-2:]
    slices = 1 if layer.depth is None else sides[0] + 2 * layer.depth.padding
    lanes = lanes_for(images) if layer.depth is None else 1
    around = (height + 2 * layer.padding[0] + 16) * (width + 2 * layer.padding[1] + 16)
    return 4 * channels * slices * around * lanes < MOST_BYTES


def _step_times(plan: ExecutionPlan, leaves: Sequence[Any], work: ThreadWork) -> dict[str, float]:
    """The milliseconds that each item's steps take."""
    found: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        values = plan.values(leaves)
        once: dict[str, float] = {}
        for name, step in work.steps:
            start = time.perf_counter()
            step(values)
            once[name] = once.get(name, 0.0) + time.perf_counter() - start
        for name, seconds in once.items():
            found.setdefault(name, []).append(1e3 * seconds)
    return {name: statistics.median(each) for name, each in found.items()}


def _described(layer: Layer, shape: tuple[int, ...]) -> str:
    """What a layer computes, for the summary."""
    if layer.kind == "linear":
        return "linear"
    sizes = shape[2:] if layer.depth is None else (layer.depth.size, *shape[2:])
    found = f"conv {'x'.join(map(str, sizes[-layer.dims :]))}"
    found += f" /{layer.stride[-1]}" if layer.stride != (1, 1) else ""
    return found + (f" in {layer.groups} groups" if layer.groups > 1 else "")


def _layer_times(choice: EngineChoice, passed: torch_run.Passed, sparse: Mapping[str, float]) -> tuple[LayerTime, ...]:
    found, shapes = [], passed.shapes
    for layer in (item for item in choice.program.items if isinstance(item, Layer)):
        weight = choice.taken.specs[layer.name].weight
        kind = _described(layer, weight.shape)
        zeros = 1 - np.count_nonzero(weight) / max(weight.size, 1)
        title = choice.program.title(layer.weight)
        used = choice.plan is not None and layer.name in choice.plan.sparse
        times = (sparse.get(layer.name), passed.milliseconds[layer.name])
        shape = shapes.get(layer.name, ())
        found.append(LayerTime(title, kind, shape, float(zeros), "sparse" if used else "torch", *times))
    return tuple(found)
