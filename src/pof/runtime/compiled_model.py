"""A model that runs on the sparse kernels where they are faster, and on torch everywhere else."""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from pof.checks import check_whole
from pof.errors import PofError, warn
from pof.planning.wrappers import unwrap
from pof.runtime.call_inputs import CallInputs, InputOrder, Key, asks_for_a_cache
from pof.runtime.capture import capture
from pof.runtime.compiled_summary import summary_of
from pof.runtime.compiled_weights import CompiledWeights, refuse_other
from pof.runtime.engine_choice import EarlierChoice, EngineChoice, LayerTime, Times, UserCalls, choose
from pof.runtime.execution_plan import ExecutionPlan, ThreadWork
from pof.runtime.kernel_calls import library
from pof.runtime.model_copies import (
    frozen_copy,
    refuse_training,
    same_structure,
    structure,
    trial_copy,
    unchanged_buffers,
)
from pof.runtime.model_outputs import deviation_from_model, owned, places_of
from pof.runtime.program import Program
from pof.terminal.patience import telling_after

MOST_SIZES = 16
"""How many input sizes are kept ready; beyond that, the oldest one is dropped."""
PATIENCE = 2.0
"""The seconds after which a line on stderr says what takes so long."""
MOST_DEVIATION = 1e-2
"""How far outputs may be from the model's, relative to the largest, before the model itself has to run."""
STEP = 1.25
"""By what factor the number of weights that are not zero may change before engines are chosen again."""


def compile(
    model: nn.Module, example: Tensor | Sequence[Any] | Mapping[str, Any], *, threads: int | None = None
) -> "CompiledModel":
    """Compile `model` at its present sparsity, so that it runs faster on this CPU with the same outputs.

    The model is exported with `torch.export`. BatchNorm, additions and ReLUs are fused into the convolutions before
    them. Each layer runs on the sparse kernels or on torch, whichever is faster here; if that gains nothing, torch runs
    the whole model. The model itself is not changed. Its weights are copied; call `update()` of the result after you
    change them. A model of transformers returns no cache; a call that asks for one runs on the plain model.

    Args:
        model: a module in evaluation mode, on the CPU, in float32.
        example: an input, a tuple of inputs, or a dict of inputs by name. Other batch sizes work too, and are timed
            when they first occur.
        threads: how many threads to use; as many as torch uses by default.

    Raises:
        PofError: the model cannot be exported, or pof was built without its compiled core.

    Example:
        >>> import torch, pof
        >>> model = pof.models.resnet20().eval()
        >>> pof.Elastic(model).prune(0.9)
        >>> images = torch.randn(1, 3, 32, 32)
        >>> fast = pof.compile(model, images)
        >>> bool(torch.allclose(fast(images), model(images), atol=1e-3))
        True
    """
    return CompiledModel(model, example, threads)


class CompiledModel:
    """The result of `pof.compile`; call it like the model."""

    def __init__(
        self, model: nn.Module, example: Tensor | Sequence[Any] | Mapping[str, Any], threads: int | None = None
    ) -> None:
        library()
        if not isinstance(model, nn.Module):
            raise PofError(f"model is a {type(model).__name__}: pass a torch.nn.Module; pof.load fills one from a file")
        self._model = unwrap(model)
        refuse_training(self._model)
        self._order = InputOrder(self._model.forward, type(self._model).__name__)
        if isinstance(example, Mapping) and asks_for_a_cache(example):
            raise PofError(
                "leave use_cache and past_key_values out of the example: calls with a cache run on the model"
            )
        self._example = self._order.of_example(example)
        self._threads = torch.get_num_threads() if threads is None else check_whole(threads, "threads", "how many")
        self._lock = threading.RLock()
        self._local = threading.local()
        self._frozen, self._state = frozen_copy(self._model)
        """A copy of the model as it was compiled: it runs where compiling gains nothing."""
        self._structure = structure(self._frozen)
        """Its plain attributes, and which of its tensors are tied."""
        self._places = places_of(self._state)
        self._programs: dict[Program, CompiledWeights] = {}
        self._choices: dict[Key, EngineChoice] = {}
        """The choice for each size of inputs. `update` replaces the whole dict, so that running calls can finish."""
        self._times: dict[Key, Times] = {}
        self._earlier: dict[int, dict[Key, EarlierChoice]] = {}
        """What was chosen at other numbers of weights, by their steps."""
        self._warned_of_caches = False
        with torch.no_grad():
            self._choice(self._example)
        self._step = _step_of(self._programs)
        """About how many weights are not zero: the engines that were chosen are right for that."""

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The outputs of the model, with its weights as of compilation or of the last update."""
        if asks_for_a_cache(named):
            return self._plainly(CallInputs(inputs, named))
        given = self._order.of(inputs, named)
        with torch.no_grad():
            return self._run(self._choices.get(given.key()) or self._choice(given), given)

    def _run(self, choice: EngineChoice, inputs: CallInputs) -> Any:
        if choice.runner == "model":
            return owned(inputs.to(self._frozen), self._places)
        leaves = inputs.leaves()
        outputs, values = choice.run(leaves, self._work)
        for name, written in choice.program.changes.inputs.items():
            leaves[choice.program.inputs.index(name)].copy_(values[written])
        for name, written in choice.program.changes.buffers.items():
            choice.taken.constants[name].copy_(values[written])
        return outputs

    def _plainly(self, inputs: CallInputs) -> Any:
        """What the model itself returns for a call with a cache."""
        if not self._warned_of_caches:
            self._warned_of_caches = True
            warn("a call with a cache of keys and values runs on the plain model: leave the cache out to gain speed")
        # The copy returns no cache unless it is asked to.
        asked = {"use_cache": True} if getattr(getattr(self._model, "config", None), "use_cache", False) else {}
        with torch.no_grad():
            return owned(inputs._replace(named={**asked, **inputs.named}).to(self._frozen), self._places)

    def update(self) -> None:
        """Take over the model's present weights, such as another sparsity.

        Layers keep their engines while the number of weights that are not zero is about the same. If it is not, engines
        are chosen again for the example's size, and for others at their next call. What was chosen is remembered, so
        going back takes no longer than copying the weights.

        Raises:
            PofError: a layer was removed or has another shape, or the model is in training mode.
        """
        with self._lock, torch.no_grad():
            frozen, state = frozen_copy(self._model, compiled=self)
            refuse_other(self._state, state)
            refuse_training(frozen)
            now = structure(frozen)
            # Export takes attributes and ties for constant: where they changed, all is done again.
            known = same_structure(self._structure, now)
            programs = {program: CompiledWeights.of(program, state) for program in self._programs} if known else {}
            choices = {key: c.with_weights(programs[c.program]) for key, c in self._choices.items() if known}
            self._earlier[self._step] = {key: c.earlier() for key, c in self._choices.items()}
            before, self._step = self._step, _step_of(programs)
            self._frozen, self._state, self._structure, self._programs = frozen, state, now, programs
            self._choices, self._times, self._places = choices, {}, places_of(state)
            if not known:
                self._earlier = {}
                self._choose_again()
                self._step = _step_of(self._programs)
            elif self._step != before:
                self._choose_again()

    def _choose_again(self) -> None:
        """Choose other engines, while calls of other threads run on the present ones."""
        earlier = self._earlier.get(self._step, {})
        usable = {key: each for key, each in earlier.items() if each.program in self._programs}
        found = {key: each.with_weights(self._programs[each.program]) for key, each in usable.items()}
        key, times = self._example.key(), dict[Key, Times]()
        if key not in found:
            found[key], times[key] = self._chosen(self._example)
        self._choices, self._times = found, times

    def times(self, *inputs: Any, **named: Any) -> tuple[LayerTime, ...]:
        """The time of each layer, for inputs of this size (by default the example's)."""
        return self._measured(inputs, named)[1].layers

    def milliseconds(self, *inputs: Any, **named: Any) -> tuple[float, float]:
        """The milliseconds of the plain model and of this one, for inputs of this size (by default the example's)."""
        _, times = self._measured(inputs, named)
        return times.plain, times.compiled

    def speedup(self, *inputs: Any, **named: Any) -> float:
        """The speed-up over the plain model, for inputs of this size (by default the example's)."""
        plain, compiled = self.milliseconds(*inputs, **named)
        return plain / compiled

    def summary(self, *inputs: Any, **named: Any) -> str:
        """A table with one row per layer, and a line for the whole model."""
        choice, times = self._measured(inputs, named)
        return summary_of(times, choice.runner)

    def __repr__(self) -> str:
        return f"CompiledModel({type(self._model).__name__}, {self._threads} threads, {len(self._choices)} sizes ready)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled: a compiled model holds memory addresses."""
        raise PofError("a compiled model cannot be copied or pickled: copy the model, and compile the copy")

    def _measured(self, listed: Sequence[Any], named: Mapping[str, Any]) -> tuple[EngineChoice, Times]:
        """The choice for inputs of this size and its times; they are measured again after an update."""
        inputs = self._order.of(listed, named) if listed or named else self._example
        key = inputs.key()
        with torch.no_grad():
            choice = began = self._choices.get(key) or self._choice(inputs, "")
            known = self._times.get(key)
            if known is None:
                # Other weights since the choice, or a misjudgement: what is slower is not used any more.
                with unchanged_buffers(self._frozen):
                    choice, times = choice.times(inputs.copied().leaves(), self._work, self._calls(inputs))
                with self._lock:
                    # An update meanwhile has other weights: what was measured is returned, but not kept.
                    if self._choices.get(key) is began:
                        self._choices, self._times = {**self._choices, key: choice}, {**self._times, key: times}
                return choice, times
            return choice, known

    def prepare(self, *inputs: Any, **named: Any) -> None:
        """Choose the engines for inputs of this size now, so that their first call does not have to."""
        self._measured(inputs, named)

    def _calls(self, inputs: CallInputs) -> UserCalls:
        """The calls that are timed, as the user would make them."""
        trial, given, ours = trial_copy(self._frozen), inputs.copied(), inputs.copied()

        def compiled(choice: EngineChoice) -> Callable[[], object]:
            return lambda: (ours.key(), self._run(choice, ours))

        return UserCalls(lambda: given.to(trial), compiled)

    def _work(self, plan: ExecutionPlan) -> ThreadWork:
        """The memory and steps of this thread for a plan; they are freed with the plan."""
        found: WeakKeyDictionary[ExecutionPlan, ThreadWork] = self._local.__dict__.setdefault(
            "work", WeakKeyDictionary()
        )
        if plan not in found:
            found[plan] = plan.work()
        return found[plan]

    def _choice(self, inputs: CallInputs, advice: str = "; fast.prepare(inputs) does it beforehand") -> EngineChoice:
        """The fastest engines for inputs of this size; `advice` ends the line that says what takes so long."""
        if inputs.have_a_cache():
            raise PofError("a cache of keys and values must be passed by name, as past_key_values=...; or leave it out")
        with self._lock:
            key = inputs.key()
            if key not in self._choices:
                with telling_after(PATIENCE, _waiting(inputs) + advice if self._choices else ""):
                    choice, times = self._chosen(inputs)
                kept = list(self._choices.items())[-(MOST_SIZES - 1) :]
                self._choices = {**dict(kept), key: choice}
                self._times = {**{k: v for k, v in self._times.items() if k in self._choices}, key: times}
            return self._choices[key]

    def _chosen(self, inputs: CallInputs) -> tuple[EngineChoice, Times]:
        """Find the fastest engines for these inputs, and check what they compute."""
        with unchanged_buffers(self._frozen):
            program = self._program(inputs)
            taken, leaves = self._programs[program], inputs.copied().leaves()
            choice, times = choose(program, taken, leaves, self._threads, self._work, self._calls(inputs))
            if choice.runner == "model":
                return choice, times
            deviation = deviation_from_model(self._frozen, lambda: self._run(choice, inputs.copied()), inputs.copied)
        if deviation is None or deviation <= MOST_DEVIATION:
            return choice, times
        warn(f"the compiled outputs are {deviation:.1g} off the model's: the plain model is used")
        return choice.as_model(), replace(times, compiled=times.plain)

    def _program(self, inputs: CallInputs) -> Program:
        """A program that accepts these inputs; the model is exported again if there is none yet."""
        leaves, tree = inputs.leaves(), inputs.tree()
        for program in self._programs:
            if program.accepts(leaves, tree):
                return program
        program = capture(trial_copy(self._frozen), inputs)
        refuse_other({key: self._state[key] for key in program.constants.values() if key in self._state}, self._state)
        if not program.accepts(leaves, tree):
            raise PofError("the model cannot be exported for inputs of this size")
        used = {choice.program for choice in self._choices.values()}
        self._programs = {p: taken for p, taken in self._programs.items() if p in used}
        self._programs[program] = CompiledWeights.of(program, self._state)
        return program


def _step_of(programs: Mapping[Program, CompiledWeights]) -> int:
    """About how many weights are not zero, on a scale of steps."""
    specs = (spec for taken in programs.values() for spec in taken.specs.values())
    counts = [(np.count_nonzero(spec.weight), spec.weight.size) for spec in specs]
    kept, weights = (sum(each) for each in zip(*counts, strict=True)) if counts else (0, 0)
    return round(math.log(weights / kept, STEP)) if kept else -1


def _waiting(inputs: CallInputs) -> str:
    sizes = ["x".join(map(str, leaf.shape)) for leaf in inputs.leaves() if isinstance(leaf, Tensor)]
    shown = ", ".join([*sizes[:3], *(["..."] if len(sizes) > 3 else [])])
    return f"pof: choosing the fastest engines for inputs of {shown}, once"
