"""Keeps our own work out of graphs that torch.compile traces: it ranks in numpy and writes weights in place."""

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def uncompiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make `function` run as plain Python even when compiled code calls it; the graph breaks there.

    `torch.compiler.disable` at import time would load the whole compiler for every user.
    """
    disabled: list[Callable[Arguments, Result]] = []

    @functools.wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **kwargs)

    return wrapper
