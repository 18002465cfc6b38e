"""Recoverable pruning for PyTorch: train once, then any sparsity in milliseconds, and back to dense bit for bit."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

# Loaded on first use, so that `pof --help` does not wait for torch.
_HOMES = {
    "Attached": "pof.on_the_fly",
    "Elastic": "pof.elastic",
    "Penalty": "pof.penalty",
    "Plan": "pof.planning",
    "PlanError": "pof.errors",
    "PofError": "pof.errors",
    "PofFile": "pof.file",
    "PofFileError": "pof.errors",
    "Sphere": "pof.sphere",
    "SphericalConv2d": "pof.spherical",
    "SphericalLinear": "pof.spherical",
    "State": "pof.states",
    "WeightsChangedError": "pof.errors",
    "attach": "pof.on_the_fly",
    "compile": "pof.runtime",
    "export": "pof.exporting",
    "load": "pof.file",
    "normalize_inputs": "pof.spherical",
    "open": "pof.file",
    "plan": "pof.planning",
    "pruned": "pof.pruned_pass",
    "save": "pof.file",
}

if TYPE_CHECKING:
    from pof import models as models
    from pof.elastic import Elastic as Elastic
    from pof.errors import PlanError as PlanError
    from pof.errors import PofError as PofError
    from pof.errors import PofFileError as PofFileError
    from pof.errors import WeightsChangedError as WeightsChangedError
    from pof.exporting import export as export
    from pof.file import PofFile as PofFile
    from pof.file import load as load
    from pof.file import open as open
    from pof.file import save as save
    from pof.on_the_fly import Attached as Attached
    from pof.on_the_fly import attach as attach
    from pof.penalty import Penalty as Penalty
    from pof.planning import Plan as Plan
    from pof.planning import plan as plan
    from pof.pruned_pass import pruned as pruned
    from pof.runtime import compile as compile
    from pof.sphere import Sphere as Sphere
    from pof.spherical import SphericalConv2d as SphericalConv2d
    from pof.spherical import SphericalLinear as SphericalLinear
    from pof.spherical import normalize_inputs as normalize_inputs
    from pof.states import State as State

__all__ = sorted([*_HOMES, "__version__", "models"])


def __getattr__(name: str) -> Any:
    if name == "models":
        return importlib.import_module("pof.models")
    if name not in _HOMES:
        raise AttributeError(f"module 'pof' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
