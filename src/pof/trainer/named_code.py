"""Finds the models and methods that a recipe names: ours by a short name, users' own as `package.module:name`."""

import importlib
from difflib import get_close_matches
from typing import Any

from pof.errors import PofError, first_line
from pof.methods import METHODS, check_method


def find_method(name: str) -> Any:
    """Return the class of a method: one of `pof.methods.METHODS`, or `package.module:Class`."""
    if isinstance(name, str) and name in METHODS:
        return METHODS[name]
    if not isinstance(name, str) or ":" not in name:
        near = get_close_matches(str(name), METHODS, n=1)
        perhaps = f", perhaps {near[0]!r}" if near else ""
        known = ", ".join(map(repr, METHODS))
        raise PofError(f"method.name={name!r} must be one of {known}{perhaps}; name your own as package.module:Class")
    found = import_named(name, "method.name", "method", tuple(METHODS))
    check_method(found, name)
    return found


def import_named(name: str, key: str, what: str, known: tuple[str, ...]) -> Any:
    """Import what `package.module:name` names.

    `key` is the recipe's key, `what` the kind of thing it names, `known` the names that need no colon.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        own = "package.module:Class" if what == "method" else "package.module:function"
        raise PofError(f"{key}={name!r} is not a known {what}: use one of {', '.join(known)}, or {own}")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # the module is the user's own, and may fail in any way
        kind = "Class" if what == "method" else "function"
        where = (
            f"write it as module:{kind}, without .py" if ".py" in name else "it is looked for here and on PYTHONPATH"
        )
        raise PofError(f"{key}={name!r} cannot be imported ({first_line(error)}): {where}") from None
