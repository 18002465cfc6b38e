"""The training methods, one file per method. `METHODS` finds one by name, and `register` adds one of your own."""

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
"""The method classes, by the names that recipes use."""

NEEDED = ("ranking", "gradients", "after_step", "finish", "figures", "state_dict", "load_state_dict")

__all__ = ["METHODS", "Method", "RunPass", "Span", "TrainedRanking", "check_method", "register"]


def register(name: str, method: MethodClass) -> None:
    """Let recipes use your own method under `name`; see `pof.methods.protocol` for what it must have.

    A recipe can also name it as `package.module:Class`, without registering it.

    Raises:
        PofError: the name is taken by another method, or the class lacks something.
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise PofError(f"name={name!r} must be a word without a colon: pof.methods.register('mine', Mine)")
    check_method(method, name)
    if METHODS.get(name, method) is not method:
        raise PofError(f"there is a method {name!r} already: register yours under another name")
    METHODS[name] = method


def check_method(method: Any, name: str) -> None:
    """Raise unless `method` follows `MethodClass`; the message calls it `name`."""
    missing = [attribute for attribute in NEEDED if not callable(getattr(method, attribute, None))]
    settings = getattr(method, "Settings", None)
    frozen = isinstance(settings, type) and is_dataclass(settings) and settings.__dataclass_params__.frozen  # type: ignore[attr-defined]
    if not isinstance(method, type):
        raise PofError(f"the method {name!r} is a {type(method).__name__}: pass the class, not an instance of it")
    if not frozen:
        missing.insert(0, "Settings (a frozen dataclass)")
    if missing:
        raise PofError(f"the method {name!r} has no {', '.join(missing)}: see pof.methods.protocol for what it needs")
