"""What `import pof` gives: a short list of names, loaded on first use."""

import importlib
import json
import pkgutil
import subprocess
import sys
import types
from typing import Any

import pytest

import pof

MODULES = sorted(module.name for module in pkgutil.walk_packages(pof.__path__, "pof."))


def run(code: str) -> Any:
    """What `code`, run in a fresh interpreter with warnings as errors, prints as JSON."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_public_names_are_these() -> None:
    """Adding a name is a decision: it is made here too."""
    assert pof.__all__ == [
        "Attached",
        "Elastic",
        "Nested",
        "Penalty",
        "Plan",
        "PlanError",
        "PofError",
        "PofFile",
        "PofFileError",
        "Sphere",
        "SphericalConv2d",
        "SphericalLinear",
        "State",
        "WeightsChangedError",
        "__version__",
        "attach",
        "compile",
        "export",
        "fit",
        "load",
        "methods",
        "models",
        "normalize_inputs",
        "open",
        "plan",
        "pruned",
        "save",
    ]
    assert len(pof.__all__) <= 27


def test_dir_is_all() -> None:
    assert dir(pof) == sorted(pof.__all__)


@pytest.mark.parametrize("name", pof.__all__)
def test_every_public_name_can_be_imported_and_is_documented(name: str) -> None:
    value = getattr(pof, name)
    if name != "__version__":
        assert value.__doc__
        assert getattr(value, "__name__", name).rpartition(".")[2] == name


def test_a_star_import_gives_all_of_them() -> None:
    names = run("from pof import *\nimport json; print(json.dumps(sorted(n for n in dir() if n != 'json')))")
    assert set(pof.__all__) <= set(names)


def test_the_version_is_that_of_the_package() -> None:
    assert pof.__version__ == importlib.metadata.version("pof")


@pytest.mark.parametrize("name", ["Elasitc", "torch_", "_private", "cuda"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'pof' has no attribute '{name}'"):
        getattr(pof, name)
    with pytest.raises(ImportError, match=f"cannot import name '{name}'"):
        exec(f"from pof import {name}")


def test_importing_pof_does_not_import_torch() -> None:
    loaded = run("import sys, pof, json; dir(pof); pof.__version__; print(json.dumps(sorted(sys.modules)))")
    heavy = {name.partition(".")[0] for name in loaded} & {"torch", "numpy", "rich", "matplotlib"}
    assert heavy == set()
    assert [name for name in loaded if name.startswith("pof.")] == []


def test_the_first_use_of_a_name_imports_torch_but_no_trainer() -> None:
    loaded = run("import sys, pof, json; pof.attach, pof.Elastic, pof.models; print(json.dumps(sorted(sys.modules)))")
    packages = {name.partition(".")[0] for name in loaded}
    assert "torch" in packages
    assert packages & {"lightning", "accelerate", "torchvision", "timm", "sklearn", "matplotlib"} == set()


def test_submodules_do_not_shadow_the_public_names() -> None:
    """Importing `pof.x` sets the attribute `x` of `pof`: a submodule named as a function would take its place."""
    kinds = run(
        "import importlib, json, pof\n"
        f"for name in {MODULES!r}: importlib.import_module(name)\n"
        "print(json.dumps({name: type(getattr(pof, name)).__name__ for name in pof.__all__}))"
    )
    assert [name for name, kind in kinds.items() if kind == "module"] == ["methods", "models"]
    assert kinds["plan"] == kinds["attach"] == kinds["pruned"] == "function"


def test_a_name_is_the_same_object_at_home_and_at_the_front_door() -> None:
    from pof.errors import PofError
    from pof.planning.pruning_plan import plan

    assert pof.plan is plan
    assert pof.PofError is PofError
    assert pof.models is sys.modules["pof.models"]


def test_pof_error_is_a_value_error_and_the_root_of_all_errors() -> None:
    assert issubclass(pof.PofError, ValueError)
    errors = {
        value
        for module in map(importlib.import_module, MODULES)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseException) and value.__module__.startswith("pof")
    }
    assert {pof.PofError, pof.PlanError, pof.WeightsChangedError} <= errors
    assert [error for error in errors if not issubclass(error, pof.PofError)] == []


def test_models_is_a_module_with_its_constructors() -> None:
    assert isinstance(pof.models, types.ModuleType)
    assert callable(pof.models.resnet18)
