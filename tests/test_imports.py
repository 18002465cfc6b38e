"""Imports go one way. `ROOMS` has the rooms of `src/pof` from the ground up, and what each may import.

The rules are checked twice: in the source of every file, imports inside functions too, and at run time, where a fresh
interpreter imports each room and looks at what came with it.
"""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pof

GROUND = {"errors", "checks", "core", "terminal"}
"""What every room may import."""

ROOMS: dict[str, set[str]] = {
    "ranking": set(),
    "planning": {"ranking"},
    "sphere": {"ranking", "planning"},
    "file": {"ranking", "planning"},
    "runtime": {"planning", "file"},
    "elastic": {"ranking", "planning", "sphere", "file", "runtime"},
    "nested": {"ranking", "planning", "elastic"},
    "fitting": {"ranking", "planning", "file", "elastic"},
    "methods": {"ranking", "planning", "sphere", "elastic", "nested"},
    "models": set(),
    "data": set(),
    "trainer": {"ranking", "planning", "sphere", "file", "runtime", "elastic", "fitting", "methods", "models", "data"},
    "report": {"ranking", "planning", "file", "runtime", "elastic", "models", "data", "trainer"},
    "cli": {"ranking", "file", "runtime", "elastic", "fitting", "data", "trainer", "report"},
}
"""From the ground up: a room may only name rooms that stand above it in this list."""

FRONT_DOOR = "__init__"
START = "__main__"
MATHS_PACKAGES = {"torch", "numpy"}
"""Beside the standard library, all that `ranking` imports."""
OPTIONAL_PACKAGES = {"torchvision", "timm", "lightning", "pytorch_lightning", "accelerate", "sklearn", "PIL", "pooch"}
"""Not needed to use pof: imported, if at all, inside the function that wants them."""
USED_WHOLE = {"trainer": {"accelerate"}}
"""Rooms that are nothing without an optional package; whoever imports such a room says which extra is missing."""
WITHOUT_TORCH = ("pof", "pof.cli.main", "pof.cli.inspect_verb", "pof.file.pof_file", "pof.core.library")

ROOT = Path(pof.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def module_of(file: Path) -> str:
    parts = ["pof", *file.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(file): file for file in FILES}


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def import_nodes(tree: ast.AST, inside_functions: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif is_for_types_only(node):
            continue
        elif inside_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from import_nodes(node, inside_functions)


def imported(source: str, package: str, inside_functions: bool = True) -> set[str]:
    """The dotted names that a file of `package` imports; `from a import b` gives `a.b`."""
    names = set()
    for node in import_nodes(ast.parse(source), inside_functions):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        else:
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


@cache
def imported_by(file: Path, inside_functions: bool = True) -> set[str]:
    package = ".".join(["pof", *file.relative_to(ROOT).parent.parts])
    return imported(file.read_text(), package, inside_functions)


def modules_imported_by(file: Path) -> set[str]:
    """The modules of pof that a file imports, inside functions too; a name taken from `pof` is the front door."""
    found = set()
    for name in imported_by(file):
        if name.split(".")[0] != "pof":
            continue
        longest = name
        while longest not in MODULES:
            longest = longest.rpartition(".")[0]
        found.add(longest)
    return found - {module_of(file)}


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_the_table_goes_one_way() -> None:
    above: set[str] = set()
    for room, imports in ROOMS.items():
        assert imports - above == set(), f"{room} may import only what stands above it"
        above.add(room)


def test_every_room_has_a_row_and_nothing_else_is_loose() -> None:
    rooms = {room_of(file) for file in FILES} - {FRONT_DOOR, START}
    assert rooms == {*ROOMS, *GROUND}
    assert len(list(ROOT.glob("*.py"))) <= 6


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) not in (FRONT_DOOR, START)], ids=name_of)
def test_a_file_imports_only_what_its_row_allows(file: Path) -> None:
    room = room_of(file)
    allowed = {room, *ROOMS.get(room, set()), *GROUND} if room not in GROUND else {"errors", "core"}
    modules = modules_imported_by(file)
    assert "pof" not in modules, "nothing inside imports the front door"
    assert {module.split(".")[1] for module in modules} - allowed == set()


def test_no_module_imports_itself_in_a_circle_not_even_inside_a_function() -> None:
    graph = {name: modules_imported_by(file) - {"pof"} for name, file in MODULES.items()}
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path, name))
        if name not in done:
            for other in graph[name]:
                walk(other, (*path, name))
            done.add(name)

    for name in graph:
        walk(name, ())


@pytest.mark.parametrize("file", [file for file in FILES if room_of(file) == "ranking"], ids=name_of)
def test_the_maths_needs_torch_and_numpy_only(file: Path) -> None:
    packages = {name.partition(".")[0] for name in imported_by(file)}
    assert packages - MATHS_PACKAGES - set(sys.stdlib_module_names) - {"pof"} == set()


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_optional_packages_are_imported_where_they_are_used(file: Path) -> None:
    packages = {name.partition(".")[0] for name in imported_by(file, inside_functions=False)}
    assert packages & (OPTIONAL_PACKAGES - USED_WHOLE.get(room_of(file), set())) == set()


def loaded_with(*modules: str) -> set[str]:
    """What a fresh interpreter has loaded after importing `modules`."""
    code = f"import importlib, json, sys\nfor name in {modules!r}: importlib.import_module(name)\n"
    code += "print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("room", ROOMS)
def test_at_run_time_a_room_loads_only_what_its_row_allows(room: str) -> None:
    own = [name for name in MODULES if name.split(".")[1:2] == [room]]
    loaded = {name.split(".")[1] for name in loaded_with(*own) if name.startswith("pof.")}
    # What a room may import brings its own rooms along.
    allowed, waiting = {*GROUND}, [room]
    while waiting:
        each = waiting.pop()
        if each not in allowed:
            allowed.add(each)
            waiting += ROOMS[each]
    assert loaded - allowed == set()


def test_the_file_does_not_load_a_live_model() -> None:
    own = [name for name in MODULES if name.startswith("pof.file")]
    assert not {name for name in loaded_with(*own) if name.startswith(("pof.elastic", "pof.sphere"))}


def test_a_live_model_loads_neither_file_nor_runtime_until_a_search_needs_them() -> None:
    loaded = loaded_with("pof.elastic.elastic_model", "pof.elastic.pruned_pass")
    assert not {name for name in loaded if name.startswith(("pof.file", "pof.runtime"))}


def test_a_file_of_weights_is_loaded_without_what_training_needs() -> None:
    loaded = loaded_with("pof.trainer.trained", "pof.trainer.fitted_file", "pof.cli.compile_verb", "pof.cli.fit_verb")
    assert not {name for name in loaded if name.partition(".")[0] == "accelerate"}


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_what_needs_no_torch_loads_none(module: str) -> None:
    heavy = {name.partition(".")[0] for name in loaded_with(module)} & {"torch", "rich", "matplotlib", "fsspec"}
    assert heavy == set()


def test_a_name_has_one_meaning() -> None:
    """A class has a name that no other class of the house has, but for the `Settings` inside of methods."""
    found: dict[str, list[str]] = {}
    for name, file in MODULES.items():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(name)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}


def test_no_module_has_the_name_of_a_public_function() -> None:
    functions = {name for name in pof.__all__ if callable(getattr(pof, name))}
    assert {name for name in MODULES if name.rpartition(".")[2] in functions} == set()


def test_the_walk_sees_every_way_to_import() -> None:
    source = """
import torch, pof.elastic as e
from pof import plan
from pof.cli.main import main
from . import tables
from .plots import draw
from ..penalty import Penalty
if TYPE_CHECKING:
    from pof.sphere import Sphere
try:
    import rich
except ImportError:
    pass
class A:
    import timm
    def method(self):
        from pof import models
"""
    anywhere = imported(source, "pof.report")
    at_the_top = {"torch", "pof.elastic", "pof.plan", "pof.cli.main.main", "pof.report.tables", "pof.report.plots.draw"}
    at_the_top |= {"pof.penalty.Penalty", "rich", "timm"}
    assert anywhere == at_the_top | {"pof.models"}
    assert imported(source, "pof.report", inside_functions=False) == at_the_top
