"""Choosing weights by name: a glob matches the name of a weight, or of any module that holds it."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from pof.errors import PlanError


def as_globs(globs: Iterable[str], what: str) -> tuple[str, ...]:
    """`globs` as a tuple; a single string is one glob, not its letters. `what` is the argument's name, for errors."""
    if isinstance(globs, str):
        return (globs,)
    found = tuple(globs) if isinstance(globs, Iterable) else (None,)
    if not all(isinstance(glob, str) for glob in found):
        raise PlanError(f"{what}={globs!r} must be names or globs, such as ('fc', 'layer1.*')")
    return found


def matches(names: Iterable[str], globs: Iterable[str]) -> bool:
    """Whether any of `globs` matches any of a weight's `names`."""
    paths = [path for name in names for path in _paths(name)]
    return any(fnmatchcase(path, glob) for glob in globs for path in paths)


def refuse_unmatched(globs: Iterable[str], what: str, weights: Sequence[Sequence[str]]) -> None:
    """Raise if a glob matches none of `weights`, each given by its names: it is most likely misspelt."""
    for glob in globs:
        if not any(matches(names, (glob,)) for names in weights):
            known = [path for names in weights for name in names for path in _paths(name)]
            close = get_close_matches(str(glob), known, n=1, cutoff=0.4)
            hint = f"; the nearest name is {close[0]!r}" if close else ""
            raise PlanError(
                f"{what}={glob!r} matches no weight or module of the plan{hint}: print(pof.plan(model)) lists them"
            )


def _paths(name: str) -> list[str]:
    """The names of the weight and of the modules that hold it, so that `layer4` stands for everything in it."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
