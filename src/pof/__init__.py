"""One neural network for every size: adapt it once, then take it to any sparsity in milliseconds, and back."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

# Loaded on first use: `import pof` needs at most numpy, and `pof --help` does not wait for torch.
_HOMES = {
    "Attached": "pof.sphere.attachment",
    "Elastic": "pof.elastic.elastic_model",
    "Nested": "pof.nested",
    "Penalty": "pof.sphere.penalty",
    "Plan": "pof.planning.pruning_plan",
    "PlanError": "pof.errors",
    "PofError": "pof.errors",
    "PofFile": "pof.file.pof_file",
    "PofFileError": "pof.errors",
    "Sphere": "pof.sphere.row_sphere",
    "SphericalConv2d": "pof.sphere.spherical_layers",
    "SphericalLinear": "pof.sphere.spherical_layers",
    "State": "pof.ranking.sparsity_state",
    "WeightsChangedError": "pof.errors",
    "attach": "pof.sphere.attachment",
    "compile": "pof.runtime.compiled_model",
    "export": "pof.runtime.exported_files",
    "fit": "pof.fitting.pretrained_fit",
    "load": "pof.file.loading",
    "normalize_inputs": "pof.sphere.spherical_layers",
    "open": "pof.file.pof_file",
    "plan": "pof.planning.pruning_plan",
    "pruned": "pof.elastic.pruned_pass",
    "save": "pof.elastic.model_saving",
}
_ROOMS = ("methods", "models")
"""Packages that are public as a whole."""

if TYPE_CHECKING:
    from pof import methods as methods
    from pof import models as models
    from pof.elastic.elastic_model import Elastic as Elastic
    from pof.elastic.model_saving import save as save
    from pof.elastic.pruned_pass import pruned as pruned
    from pof.errors import PlanError as PlanError
    from pof.errors import PofError as PofError
    from pof.errors import PofFileError as PofFileError
    from pof.errors import WeightsChangedError as WeightsChangedError
    from pof.file.loading import load as load
    from pof.file.pof_file import PofFile as PofFile
    from pof.file.pof_file import open as open
    from pof.fitting.pretrained_fit import fit as fit
    from pof.nested import Nested as Nested
    from pof.planning.pruning_plan import Plan as Plan
    from pof.planning.pruning_plan import plan as plan
    from pof.ranking.sparsity_state import State as State
    from pof.runtime.compiled_model import compile as compile
    from pof.runtime.exported_files import export as export
    from pof.sphere.attachment import Attached as Attached
    from pof.sphere.attachment import attach as attach
    from pof.sphere.penalty import Penalty as Penalty
    from pof.sphere.row_sphere import Sphere as Sphere
    from pof.sphere.spherical_layers import SphericalConv2d as SphericalConv2d
    from pof.sphere.spherical_layers import SphericalLinear as SphericalLinear
    from pof.sphere.spherical_layers import normalize_inputs as normalize_inputs

__all__ = sorted([*_HOMES, *_ROOMS, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _ROOMS:
        raise AttributeError(f"module 'pof' has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES.get(name, f"pof.{name}"))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from pof.errors import MissingPackageError

        raise MissingPackageError(f"pof.{name} needs torch: pip install 'pof[torch]'", name="torch") from None
    value = home if name in _ROOMS else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
