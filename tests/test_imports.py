"""Imports go one way: this table says which part of `pof` may import which, and the tests hold the code to it.

A part is a file or a folder of `src/pof`. A new one gets a row here. Rows name parts that stand above them; a part that
needs one from further down is in the wrong place.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pof

FRONT_DOOR = "__init__"

MAY_IMPORT: dict[str, set[str]] = {
    # Import nothing of pof.
    "errors": set(),
    "table": set(),
    "scratch": set(),
    "eager": set(),
    "native": set(),
    "urls": {"errors"},
    "replacing": {"errors", "urls"},
    "tensor_files": {"errors", "replacing", "urls"},
    "graphs": {"errors"},
    # The maths: tensors in, tensors out.
    "magnitude": {"errors", "scratch"},
    "ladder": {"magnitude"},
    "recovery": {"magnitude"},
    "rows": set(),
    "hypersign": {"rows"},
    "memory": set(),
    "fast_rows": {"magnitude", "native", "scratch"},
    "winograd": {"native"},
    # What is pruned, and how far.
    "checks": {"errors"},
    "globs": {"errors"},
    "prunable": {"errors", "magnitude"},
    "planning": {"errors", "globs", "magnitude", "prunable", "table"},
    "states": {"errors", "magnitude", "planning"},
    # Training: on the sphere, with the penalty, with the zeros held, on unit inputs.
    "hooks": {"errors"},
    "sphere": {"checks", "errors", "fast_rows", "hooks", "planning", "rows"},
    "penalty": {"checks", "eager", "errors", "fast_rows", "hypersign", "magnitude", "planning", "rows", "scratch"},
    "on_the_fly": {"errors", "hooks", "penalty", "planning", "sphere"},
    "hold": {"errors", "hooks"},
    "spherical": {"checks", "errors", "planning"},
    # A live model at any sparsity.
    "calibrate": {"errors"},
    "watch": {"magnitude"},
    "on_sphere": {"magnitude", "planning", "recovery", "rows"},
    "weight_states": {"errors", "ladder", "magnitude", "on_sphere", "planning", "recovery", "rows", "states", "watch"},
    "model_states": {"calibrate", "eager", "errors", "planning", "prunable", "states", "weight_states"},
    "sensitivity": {"errors", "magnitude", "table"},
    "choosing": {FRONT_DOOR, "errors", "magnitude", "states", "table"},
    "elastic": {
        "calibrate",
        "checks",
        "choosing",
        "errors",
        "globs",
        "hold",
        "magnitude",
        "model_states",
        "planning",
        "sensitivity",
        "states",
        "table",
    },
    "pruned_pass": {"checks", "errors", "model_states", "planning", "states"},
    # One file that holds every state.
    "file": {
        "calibrate",
        "checks",
        "elastic",
        "errors",
        "globs",
        "magnitude",
        "memory",
        "model_states",
        "native",
        "on_sphere",
        "planning",
        "prunable",
        "recovery",
        "replacing",
        "rows",
        "states",
        "table",
        "urls",
        "weight_states",
    },
    # Faster on a CPU.
    "runtime": {"checks", "errors", "graphs", "memory", "native", "planning", "table"},
    # Files for other tools.
    "exporting": {"errors", "graphs", "planning", "replacing", "tensor_files", "urls"},
    # The training methods, behind one protocol.
    "methods": {
        "calibrate",
        "checks",
        "errors",
        "hold",
        "hooks",
        "magnitude",
        "on_the_fly",
        "planning",
        "pruned_pass",
        "rows",
        "states",
    },
    # Networks, datasets, and reports: a report reads records, never a model.
    "models": {"errors"},
    "data": {"checks", "errors"},
    "report": {"errors", "replacing", "table", "urls"},
    # What there is to show of a network.
    "portrait": {"elastic", "file", "magnitude", "planning", "rows", "runtime", "states"},
    # Join all of it.
    "digits_demo": {FRONT_DOOR, "data", "elastic", "errors", "models", "on_the_fly", "states"},
    "shipped": {"checks", "data"},
    "cifar10_demo": {FRONT_DOOR, "file", "models", "native", "portrait", "runtime", "shipped", "states"},
    "train": {
        FRONT_DOOR,
        "calibrate",
        "checks",
        "choosing",
        "data",
        "elastic",
        "errors",
        "file",
        "magnitude",
        "methods",
        "models",
        "planning",
        "portrait",
        "replacing",
        "spherical",
        "states",
        "tensor_files",
        "urls",
        "winograd",
    },
}
"""The front door `pof/__init__.py` imports nothing until a name is used."""

FREE = {"cli", "__main__"}
"""May import all; nothing imports them."""

MATHS = ("errors", "scratch", "magnitude", "ladder", "recovery", "rows", "hypersign")
MATHS_PACKAGES = {"torch", "numpy"}
"""Beside the standard library, all that the maths imports."""

OPTIONAL_PACKAGES = {"torchvision", "timm", "lightning", "pytorch_lightning", "accelerate", "sklearn", "PIL"}
"""Not needed to use pof: imported, if at all, inside the function that wants them."""

USED_WHOLE = {"train": {"accelerate"}}
"""Parts that are nothing without an optional package; whoever imports such a part says which extra is missing."""

ROOT = Path(pof.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def part_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


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


def imported_by(file: Path, inside_functions: bool = True) -> set[str]:
    package = ".".join(["pof", *file.relative_to(ROOT).parent.parts])
    return imported(file.read_text(), package, inside_functions)


def parts_imported_by(file: Path) -> set[str]:
    """The other parts of pof that a file imports; a public name taken from `pof` itself is the front door."""
    paths = [name.split(".") for name in imported_by(file) if name.split(".")[0] == "pof"]
    parts = {path[1] if len(path) > 1 else FRONT_DOOR for path in paths}
    known = {part_of(other) for other in FILES}
    return {part if part in known else FRONT_DOOR for part in parts} - {part_of(file)}


def name_of(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_the_table_goes_one_way() -> None:
    above: set[str] = {FRONT_DOOR}
    for part, imports in MAY_IMPORT.items():
        assert imports - above == set(), f"{part} may import only what stands above it"
        above.add(part)
    assert "cli" not in above, "cli imports what it wants, and nothing imports cli"


def test_every_part_has_a_row() -> None:
    parts = {part_of(file) for file in FILES} - {*FREE, FRONT_DOOR}
    assert parts - set(MAY_IMPORT) == set(), "give the new part a row in MAY_IMPORT"


@pytest.mark.parametrize("file", [file for file in FILES if part_of(file) not in FREE], ids=name_of)
def test_a_file_imports_only_what_its_row_allows(file: Path) -> None:
    assert parts_imported_by(file) - MAY_IMPORT.get(part_of(file), set()) == set()


@pytest.mark.parametrize("part", MATHS)
def test_the_maths_needs_torch_and_numpy_only(part: str) -> None:
    assert MAY_IMPORT[part] <= set(MATHS)
    packages = {name.partition(".")[0] for name in imported_by(ROOT / f"{part}.py")}
    assert packages - MATHS_PACKAGES - set(sys.stdlib_module_names) - {"pof"} == set()


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_optional_packages_are_imported_where_they_are_used(file: Path) -> None:
    packages = {name.partition(".")[0] for name in imported_by(file, inside_functions=False)}
    assert packages & (OPTIONAL_PACKAGES - USED_WHOLE.get(part_of(file), set())) == set()


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
