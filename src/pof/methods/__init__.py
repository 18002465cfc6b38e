"""The training methods, one file each. `METHODS` finds one by its name, and `register` adds one of your own."""

from dataclasses import is_dataclass
from typing import Any

from pof.elastic.distillation import RunPass
from pof.errors import PofError
from pof.methods.cram import Cram
from pof.methods.cyclical import Cyclical
from pof.methods.dense import Dense
from pof.methods.dpf import Dpf
from pof.methods.dsr import Dsr
from pof.methods.gradual import Gradual
from pof.methods.nested import NestedMethod
from pof.methods.one_shot import OneShot
from pof.methods.pof import Pof
from pof.methods.protocol import Method, MethodClass, Span, TrainedRanking

METHODS: dict[str, Any] = {
    "dense": Dense,
    "pof": Pof,
    "one_shot": OneShot,
    "gradual": Gradual,
    "cyclical": Cyclical,
    "dpf": Dpf,
    "dsr": Dsr,
    "cram": Cram,
    "nested": NestedMethod,
}
"""By the name that a recipe has for it."""

NEEDED = ("ranking", "gradients", "after_step", "finish", "figures", "state_dict", "load_state_dict")

__all__ = ["METHODS", "Method", "RunPass", "Span", "TrainedRanking", "check_method", "register"]


def register(name: str, method: MethodClass) -> None:
    """Let recipes ask for a method of your own by `name`; see `pof.methods.protocol` for what it must have.

    A recipe can also name it as `package.module:Class`, without registering it.

    Raises:
        PofError: the name is taken by another method, or the class lacks something.
    """
    check_method(method, name)
    if METHODS.get(name, method) is not method:
        raise PofError(f"there is a method {name!r} already: register yours under another name")
    METHODS[name] = method


def check_method(method: Any, name: str) -> None:
    """Refuse a class that does not follow `MethodClass`; `name` is what it is called in the message."""
    missing = [attribute for attribute in NEEDED if not callable(getattr(method, attribute, None))]
    settings = getattr(method, "Settings", None)
    if not (isinstance(settings, type) and is_dataclass(settings)):
        missing.insert(0, "Settings (a frozen dataclass)")
    if missing:
        raise PofError(f"the method {name!r} has no {', '.join(missing)}: see pof.methods.protocol for what it needs")
