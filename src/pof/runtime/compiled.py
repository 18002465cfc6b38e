"""A model that runs on the sparse kernels where these are faster, and on torch where it is not."""

import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pof.errors import PofError
from pof.planning import unwrap
from pof.runtime import by_torch
from pof.runtime.capture import capture
from pof.runtime.kernels import library
from pof.runtime.plan import Plan, Work
from pof.runtime.program import Layer, Program
from pof.table import text_table

ROUNDS = 7
"""Runs of which the median counts when engines are compared."""
MARGIN = 1.02
"""How much faster the compiled model must be than the plain one for a size of input to be used there."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class LayerTime:
    """How one layer runs at one size of input, in milliseconds."""

    name: str
    operation: str
    shape: tuple[int, ...]
    """Of its output."""
    sparsity: float
    engine: str
    sparse: float
    dense: float


@dataclass(frozen=True)
class _Ready:
    """What was found for one size of input."""

    plan: Plan | None
    """None if the plain model is faster."""
    layers: tuple[LayerTime, ...]
    plain: float
    """Milliseconds of the plain model."""
    compiled: float
    channels_last: bool
    """The layout in which the plain model is faster."""


class CompiledModel:
    """What `pof.compile` gives; call it like the model."""

    def __init__(self, model: nn.Module, example: Tensor | Sequence[Any], threads: int | None = None) -> None:
        library()
        self._model = unwrap(model)
        if any(module.training for module in self._model.modules()):
            raise PofError("the model is in training mode: call model.eval() first, BatchNorm and dropout change there")
        self._example = (example,) if isinstance(example, Tensor) else tuple(example)
        self._threads = threads or torch.get_num_threads()
        self._program: Program = capture(self._model, self._example)
        self._layers = {item.name: item for item in self._program.items if isinstance(item, Layer)}
        self._lock = threading.Lock()
        self._local = threading.local()
        self._ready: dict[Key, _Ready] = {}
        self._take_weights()
        with torch.no_grad():
            self._prepare(self._example)

    def __call__(self, *inputs: Any) -> Any:
        """The outputs of the model as it was when it was compiled, or last updated."""
        with torch.no_grad():
            ready = self._ready.get(_key(inputs)) or self._prepare(inputs)
            if ready.plan is None:
                return self._plain(inputs, ready.channels_last)
            return ready.plan.run(inputs, self._work(ready.plan))

    def update(self) -> None:
        """Take up the model's present weights, such as another sparsity; which engine runs what stays as it is."""
        with self._lock, torch.no_grad():
            self._take_weights()
            for ready in self._ready.values():
                if ready.plan is not None:
                    ready.plan.take(self._specs, self._weights, self._constants)

    def times(self, *inputs: Any) -> tuple[LayerTime, ...]:
        """A row a layer, for inputs of this size (the example's)."""
        return self._of(inputs).layers

    def speedup(self, *inputs: Any) -> float:
        """How many times as fast as the plain model, for inputs of this size (the example's)."""
        ready = self._of(inputs)
        return 1.0 if ready.plan is None else ready.plain / ready.compiled

    def summary(self, *inputs: Any) -> str:
        """A table: a row a layer, and the whole."""
        ready = self._of(inputs)
        header = ("layer", "operation", "output", "sparsity", "engine", "ms", "speed-up")
        rows = [
            (t.name, t.operation, "x".join(map(str, t.shape)), f"{t.sparsity:.0%}", t.engine,
             f"{min(t.sparse, t.dense):.2f}", f"{t.dense / t.sparse:.2f}x" if t.engine == "sparse" else "-")
            for t in ready.layers
        ]  # fmt: skip
        total = f"whole model: {ready.plain:.1f} ms plain, {ready.compiled:.1f} ms compiled"
        if ready.plan is None:
            verdict = "the plain model is used: compiling gains nothing at this size and sparsity"
        else:
            verdict = f"{ready.plain / ready.compiled:.2f}x as fast"
        return f"{text_table(header, rows)}\n{total}; {verdict}"

    def _of(self, inputs: Sequence[Any]) -> _Ready:
        with torch.no_grad():
            wanted = tuple(inputs) or self._example
            return self._ready.get(_key(wanted)) or self._prepare(wanted)

    def _take_weights(self) -> None:
        self._constants = self._program.state(self._model)
        self._specs = {name: layer.spec(self._constants) for name, layer in self._layers.items()}
        self._weights = {name: by_torch.weights_of(self._layers[name], spec) for name, spec in self._specs.items()}
        self._weights_last = {name: by_torch.channels_last(*weights) for name, weights in self._weights.items()}

    def _plain(self, inputs: Sequence[Any], channels_last: bool) -> Any:
        """The model by torch alone, with the weights that were taken up."""
        weights = self._weights_last if channels_last else self._weights
        return by_torch.run(self._program, weights, self._constants, inputs).outputs

    def _work(self, plan: Plan) -> Work:
        """What this thread needs for a plan."""
        found: dict[Plan, Work] = self._local.__dict__.setdefault("work", {})
        if plan not in found:
            found[plan] = plan.work()
        return found[plan]

    def _prepare(self, inputs: Sequence[Any]) -> _Ready:
        """Find out what is fastest for inputs of this size."""
        with self._lock:
            key = _key(inputs)
            if key not in self._ready:
                if self._program.fixed and key != _key(self._example):
                    raise PofError(
                        "the model could only be exported for the size of the example: call it with that size"
                    )
                self._ready[key] = self._compare(inputs)
            return self._ready[key]

    def _compare(self, inputs: Sequence[Any]) -> _Ready:
        plain_pass = by_torch.timed(self._program, self._weights, self._constants, inputs, ROUNDS)
        shapes, dense_times = plain_pass.shapes, plain_pass.milliseconds
        candidates = [name for name, layer in self._layers.items() if _supported(layer, shapes)]
        plan = self._plan(candidates, shapes)
        times = self._step_times(plan, inputs)
        faster = [name for name in candidates if times[name] <= dense_times[name]]
        plans = [plan] if len(faster) == len(candidates) else [plan, self._plan(faster, shapes)]
        plain, channels_last = min((_milliseconds(partial(self._plain, inputs, last)), last) for last in (False, True))
        found = [(_milliseconds(partial(p.run, inputs, self._work(p))), p) for p in plans]
        best, chosen = min(found, key=lambda pair: pair[0])
        used = candidates if chosen is plan else faster
        layers = tuple(
            self._time(name, shapes[name], name in used, times, dense_times) for name in self._layers if name in shapes
        )
        return _Ready(chosen if plain > MARGIN * best else None, layers, plain, best, channels_last)

    def _plan(self, sparse: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> Plan:
        return Plan(self._program, self._specs, self._weights, self._constants, shapes, sparse, self._threads)

    def _step_times(self, plan: Plan, inputs: Sequence[Any]) -> dict[str, float]:
        """Milliseconds of each item's steps."""
        work, found = self._work(plan), dict[str, list[float]]()
        for _ in range(ROUNDS):
            values = plan.values(inputs)
            once: dict[str, float] = {}
            for name, step in work.steps:
                start = time.perf_counter()
                step(values)
                once[name] = once.get(name, 0.0) + time.perf_counter() - start
            for name, seconds in once.items():
                found.setdefault(name, []).append(1e3 * seconds)
        return {name: statistics.median(each) for name, each in found.items()}

    def _time(
        self, name: str, shape: tuple[int, ...], used: bool, sparse: Mapping[str, float], dense_: Mapping[str, float]
    ) -> LayerTime:
        layer, weight = self._layers[name], self._specs[name].weight
        kind = "linear" if layer.kind == "linear" else f"conv {weight.shape[2]}x{weight.shape[3]}"
        kind += f" /{layer.stride[0]}" if layer.stride != (1, 1) else ""
        kind += f" in {layer.groups} groups" if layer.groups > 1 else ""
        zeros = 1 - np.count_nonzero(weight) / weight.size
        title = self._program.constants[layer.weight].removesuffix(".weight")
        times = (sparse.get(name, float("inf")), dense_[name])
        return LayerTime(title, kind, shape, zeros, "sparse" if used else "torch", *times)


def _supported(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the sparse kernels can compute a layer."""
    if layer.kind == "linear":
        return layer.name in shapes
    return all(len(shapes.get(name, ())) == 4 for name in (layer.name, *layer.refs()))


def _milliseconds(run: Callable[[], Any]) -> float:
    """The median time of a call, after one that does not count."""
    run()
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds)


def _key(inputs: Sequence[Any]) -> Key:
    return tuple((tuple(v.shape), v.dtype) if isinstance(v, Tensor) else v for v in inputs)
