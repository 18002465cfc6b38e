"""A model that runs on the sparse kernels where they are faster, and on torch everywhere else."""

import inspect
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from pof.checks import check_whole
from pof.errors import PofError, first_line
from pof.planning.wrappers import unwrap
from pof.runtime.capture import capture
from pof.runtime.compiled_summary import summary_of
from pof.runtime.compiled_weights import CompiledWeights, refuse_other
from pof.runtime.engine_choice import EngineChoice, LayerTime, Times, UserCalls, choose
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
Key = tuple[Any, ...]


def compile(
    model: nn.Module, example: Tensor | Sequence[Any] | Mapping[str, Any], *, threads: int | None = None
) -> "CompiledModel":
    """Compile `model` at its present sparsity, so that it runs faster on this CPU with the same outputs.

    The model is exported with `torch.export`. BatchNorm, additions and ReLUs are fused into the convolutions before
    them. Each layer runs on the sparse kernels or on torch, whichever is faster here; if that gains nothing, torch runs
    the whole model. The model itself is not changed. Its weights are copied; call `update()` of the result after you
    change them.

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
        self._orders: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """For calls by name, what goes where."""
        self._example = self._listed((), example) if isinstance(example, Mapping) else _tuple_of(example)
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
        with torch.no_grad():
            self._choice(self._example)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The outputs of the model, with its weights as of compilation or of the last update."""
        if named:
            inputs = self._listed(inputs, named)
        with torch.no_grad():
            return self._run(self._choices.get(_key(inputs)) or self._choice(inputs), inputs)

    def _run(self, choice: EngineChoice, inputs: Sequence[Any]) -> Any:
        if choice.runner == "model":
            return owned(self._frozen(*inputs), self._places)
        leaves = pytree.tree_leaves(tuple(inputs))
        outputs, values = choice.run(leaves, self._work)
        for name, written in choice.program.changes.inputs.items():
            leaves[choice.program.inputs.index(name)].copy_(values[written])
        for name, written in choice.program.changes.buffers.items():
            choice.taken.constants[name].copy_(values[written])
        return outputs

    def update(self) -> None:
        """Take over the model's present weights, such as another sparsity; each layer keeps its engine.

        Raises:
            PofError: a layer was removed or has another shape, or the model is in training mode.
        """
        with self._lock, torch.no_grad():
            frozen, state = frozen_copy(self._model, compiled=self)
            refuse_other(self._state, state)
            refuse_training(frozen)
            now = structure(frozen)
            known = same_structure(self._structure, now)
            # Export takes attributes and ties for constant: where they changed, all is done again.
            programs = {program: CompiledWeights.of(program, state) for program in self._programs} if known else {}
            choices = {key: c.with_weights(programs[c.program]) for key, c in self._choices.items() if known}
            self._frozen, self._state, self._structure, self._programs = frozen, state, now, programs
            self._choices, self._times, self._places = choices, {}, places_of(state)
            if not known:
                self._choice(self._example)

    def times(self, *inputs: Any) -> tuple[LayerTime, ...]:
        """The time of each layer, for inputs of this size (by default the example's)."""
        return self._measured(inputs).layers

    def milliseconds(self, *inputs: Any) -> tuple[float, float]:
        """The milliseconds of the plain model and of this one, for inputs of this size (by default the example's)."""
        times = self._measured(inputs)
        return times.plain, times.compiled

    def speedup(self, *inputs: Any) -> float:
        """The speed-up over the plain model, for inputs of this size (by default the example's)."""
        plain, compiled = self.milliseconds(*inputs)
        return plain / compiled

    def summary(self, *inputs: Any) -> str:
        """A table with one row per layer, and a line for the whole model."""
        times = self._measured(inputs)
        return summary_of(times, self._choices[_key(tuple(inputs) or self._example)].runner)

    def __repr__(self) -> str:
        return f"CompiledModel({type(self._model).__name__}, {self._threads} threads, {len(self._choices)} sizes ready)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse to be copied or pickled: a compiled model holds memory addresses."""
        raise PofError("a compiled model cannot be copied or pickled: copy the model, and compile the copy")

    def _listed(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """All inputs by position, including the named ones; those left out in between have their defaults.

        Reading the signature takes longer than a small model, so the order is kept for each set of names.
        """
        call = (len(inputs), *named)
        if call not in self._orders:
            places = {name: _Given(name) for name in named}
            self._orders[call] = self._ordered([_Given(number) for number in range(len(inputs))], places)
        given: dict[Any, Any] = {**dict(enumerate(inputs)), **named}
        return tuple(given[each.key] if type(each) is _Given else each for each in self._orders[call])

    def _ordered(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of a call in the order of the signature, with defaults for those left out in between."""
        parameters = inspect.signature(self._model.forward).parameters
        try:
            given = inspect.signature(self._model.forward).bind(*inputs, **named).arguments
        except TypeError as error:
            raise PofError(f"{type(self._model).__name__} does not take these inputs: {first_line(error)}") from None
        listed: list[Any] = []
        for name in list(parameters)[: 1 + max(list(parameters).index(name) for name in given)]:
            kind = parameters[name].kind
            if kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
                names = ", ".join(given[name]) if kind is inspect.Parameter.VAR_KEYWORD else name
                raise PofError(
                    f"{type(self._model).__name__} takes {names} by name only, which pof.compile cannot pass"
                )
            value = given.get(name, parameters[name].default)
            listed += value if kind is inspect.Parameter.VAR_POSITIONAL else [value]
        return tuple(listed)

    def _measured(self, inputs: Sequence[Any]) -> Times:
        """The times for inputs of this size; they are measured again after an update."""
        wanted = tuple(inputs) or self._example
        key = _key(wanted)
        with torch.no_grad():
            choice = self._choices.get(key) or self._choice(wanted)
            if key not in self._times:
                # Other weights since the choice, or a misjudgement: what is slower is not used any more.
                with unchanged_buffers(self._frozen):
                    choice, times = choice.times(_copies(wanted), self._work, self._calls(wanted))
                self._choices, self._times = {**self._choices, key: choice}, {**self._times, key: times}
            return self._times[key]

    def prepare(self, *inputs: Any, **named: Any) -> None:
        """Choose the engines for inputs of this size now, so that their first call does not have to."""
        self._measured(self._listed(inputs, named) if named else inputs)

    def _calls(self, inputs: Sequence[Any]) -> UserCalls:
        """The calls that are timed, as the user would make them."""
        trial, given, ours = trial_copy(self._frozen), _fresh(inputs), _fresh(inputs)

        def compiled(choice: EngineChoice) -> Callable[[], object]:
            return lambda: (_key(ours), self._run(choice, ours))

        return UserCalls(lambda: trial(*given), compiled)

    def _work(self, plan: ExecutionPlan) -> ThreadWork:
        """The memory and steps of this thread for a plan; they are freed with the plan."""
        found: WeakKeyDictionary[ExecutionPlan, ThreadWork] = self._local.__dict__.setdefault(
            "work", WeakKeyDictionary()
        )
        if plan not in found:
            found[plan] = plan.work()
        return found[plan]

    def _choice(self, inputs: Sequence[Any]) -> EngineChoice:
        """Find the fastest engines for inputs of this size."""
        with self._lock:
            key = _key(inputs)
            if key not in self._choices:
                with (
                    telling_after(PATIENCE, _waiting(inputs) if self._choices else ""),
                    unchanged_buffers(self._frozen),
                ):
                    program = self._program(inputs)
                    taken, leaves = self._programs[program], _copies(inputs)
                    found = choose(program, taken, leaves, self._threads, self._work, self._calls(inputs))
                    found = self._checked(found, inputs)
                kept = list(self._choices.items())[-(MOST_SIZES - 1) :]
                self._choices = {**dict(kept), key: found[0]}
                self._times = {**{k: v for k, v in self._times.items() if k in self._choices}, key: found[1]}
            return self._choices[key]

    def _checked(self, found: tuple[EngineChoice, Times], inputs: Sequence[Any]) -> tuple[EngineChoice, Times]:
        """The choice, or the user's own model if the choice cannot stand for it."""
        choice, times = found
        if choice.runner == "model":
            return found
        deviation = deviation_from_model(
            self._frozen, lambda: self._run(choice, _fresh(inputs)), lambda: _fresh(inputs)
        )
        if deviation is None or deviation <= MOST_DEVIATION:
            return found
        warnings.warn(
            f"the compiled outputs are {deviation:.1g} off the model's: the plain model is used",
            UserWarning,
            stacklevel=5,
        )
        return choice.as_model(), replace(times, compiled=times.plain)

    def _program(self, inputs: Sequence[Any]) -> Program:
        """A program that accepts these inputs; the model is exported again if there is none yet."""
        leaves = pytree.tree_leaves(tuple(inputs))
        for program in self._programs:
            if program.accepts(leaves):
                return program
        program = capture(trial_copy(self._frozen), inputs)
        refuse_other({key: self._state[key] for key in program.constants.values() if key in self._state}, self._state)
        if not program.accepts(leaves):
            raise PofError("the model cannot be exported for inputs of this size")
        used = {choice.program for choice in self._choices.values()}
        self._programs = {p: taken for p, taken in self._programs.items() if p in used}
        self._programs[program] = CompiledWeights.of(program, self._state)
        return program


class _Given(NamedTuple):
    """Stands for an input of a call, by its position or name."""

    key: int | str


def _tuple_of(example: Tensor | Sequence[Any]) -> tuple[Any, ...]:
    """The inputs that an example stands for."""
    return (example,) if isinstance(example, Tensor) else tuple(example)


def _copies(inputs: Sequence[Any]) -> list[Any]:
    """Copies of the inputs' leaves: a model may write to them, and timing runs it many times."""
    return [_copied(leaf) for leaf in pytree.tree_leaves(tuple(inputs))]


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _fresh(inputs: Sequence[Any]) -> tuple[Any, ...]:
    copied: tuple[Any, ...] = pytree.tree_map(_copied, tuple(inputs))
    return copied


def _waiting(inputs: Sequence[Any]) -> str:
    sizes = ["x".join(map(str, leaf.shape)) for leaf in pytree.tree_leaves(tuple(inputs)) if isinstance(leaf, Tensor)]
    shown = ", ".join([*sizes[:3], *(["..."] if len(sizes) > 3 else [])])
    return f"pof: choosing the fastest engines for inputs of {shown}, once; fast.prepare(inputs) does it beforehand"


def _key(inputs: Sequence[Any]) -> Key:
    leaves, tree = pytree.tree_flatten(tuple(inputs))
    key = (tree, *((tuple(v.shape), v.dtype) if isinstance(v, Tensor) else (type(v), v) for v in leaves))
    try:
        hash(key)
    except TypeError:
        raise PofError("inputs must be tensors and plain values such as numbers, in tuples, lists or dicts") from None
    return key
