"""The inputs of a call, in one order however they were passed: by position, or by name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree as pytree

from pof.errors import PofError, first_line

LISTED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
CACHES = ("use_cache", "past_key_values", "cache_params")
"""How models of transformers call what makes them use or return a cache."""
Key = tuple[Any, ...]


class CallInputs(NamedTuple):
    """The inputs of one call."""

    listed: tuple[Any, ...]
    named: dict[str, Any]
    """Those that can only be passed by name, in the order of the signature, which is that of export."""

    def key(self) -> Key:
        """What tells inputs of different sizes apart.

        Raises:
            PofError: an input is neither a tensor nor a plain value.
        """
        leaves, tree = pytree.tree_flatten(self if self.named else self.listed)
        key = (tree, *((tuple(v.shape), v.dtype) if isinstance(v, Tensor) else _plain(v) for v in leaves))
        try:
            hash(key)
        except TypeError:
            raise PofError(
                "inputs must be tensors and plain values such as numbers, in tuples, lists or dicts"
            ) from None
        return key

    def leaves(self) -> list[Any]:
        """All values, out of the tuples, lists and dicts that they come in."""
        return pytree.tree_leaves(self)

    def tree(self) -> pytree.TreeSpec:
        """The tuples, lists and dicts that the values come in."""
        return pytree.tree_structure(self)

    def copied(self) -> "CallInputs":
        """The same inputs with tensors of their own: a model may write to them, and timing runs it many times."""
        found: CallInputs = pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, self)
        return found

    def to(self, call: Callable[..., Any]) -> Any:
        """What `call` returns for these inputs."""
        return call(*self.listed, **self.named)

    def have_a_cache(self) -> bool:
        """Whether a cache of keys and values is among the inputs, which no graph can hold."""
        return any(type(leaf).__name__.endswith("Cache") for leaf in self.leaves())


def _plain(value: Any) -> tuple[Any, ...]:
    """A plain value as part of a key: 0.0 and -0.0 differ, and NaN is NaN."""
    return (float, repr(value)) if isinstance(value, float) else (type(value), value)


class _Given(NamedTuple):
    """Stands for an input of a call, by its position or name."""

    key: int | str


class InputOrder:
    """Puts the inputs of calls of `forward`, a method of a module called `title`, in the order of its signature.

    Reading the signature takes longer than a small model, so the order is kept for each set of names.
    """

    def __init__(self, forward: Callable[..., Any], title: str) -> None:
        self._forward, self._title = forward, title
        self._known: dict[tuple[Any, ...], CallInputs] = {}

    def of_example(self, example: Tensor | Sequence[Any] | Mapping[str, Any]) -> CallInputs:
        """The inputs that an example stands for."""
        if isinstance(example, Mapping):
            return self.of((), example)
        if not isinstance(example, (Tensor, Sequence)) or isinstance(example, str):
            raise PofError(
                f"example is a {type(example).__name__}: pass a tensor, a tuple of inputs, or a dict by name"
            )
        return CallInputs((example,) if isinstance(example, Tensor) else tuple(example), {})

    def of(self, listed: Sequence[Any], named: Mapping[str, Any]) -> CallInputs:
        """The inputs of a call; those left out between others have their defaults.

        Raises:
            PofError: the module does not take them.
        """
        if not named:
            return CallInputs(tuple(listed), {})
        call = (len(listed), *named)
        if call not in self._known:
            places = [_Given(number) for number in range(len(listed))]
            self._known[call] = self._ordered(places, {name: _Given(name) for name in named})
        order = self._known[call]
        given: dict[Any, Any] = {**dict(enumerate(listed)), **named}
        return CallInputs(
            tuple(given[each.key] if type(each) is _Given else each for each in order.listed),
            {name: given[each.key] for name, each in order.named.items()},
        )

    def _ordered(self, listed: Sequence[Any], named: Mapping[str, Any]) -> CallInputs:
        parameters = inspect.signature(self._forward).parameters
        try:
            given = inspect.signature(self._forward).bind(*listed, **named).arguments
        except TypeError as error:
            raise PofError(f"{self._title} does not take these inputs: {first_line(error)}") from None
        by_name: dict[str, Any] = {}
        values: list[Any] = []
        last = max(
            (n for n, (name, p) in enumerate(parameters.items()) if name in given and p.kind in LISTED), default=-1
        )
        for number, (name, parameter) in enumerate(parameters.items()):
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                by_name |= sorted(given.get(name, {}).items())
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                by_name |= {name: given[name]} if name in given else {}
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                values += given.get(name, ())
            elif number <= last:
                values.append(given.get(name, parameter.default))
        return CallInputs(tuple(values), by_name)


def asks_for_a_cache(named: Mapping[str, Any]) -> bool:
    """Whether a call asks a model of transformers for a cache, or passes one."""
    return any(named.get(name) is not None and named[name] is not False for name in CACHES)
