"""Without torch: what needs none works, and everything else says in one line what to install."""

import subprocess
import sys
from pathlib import Path

import pytest

import pof
from pof.cli.main import VERBS

SHIPPED = Path(pof.__file__).parent / "data" / "shipped" / "cifar10-resnet20-nested.pof"
RECIPE = Path(__file__).parents[1] / "recipes" / "digits-pof.toml"
WITHOUT = "import sys\nfor name in ('torch', 'accelerate', 'safetensors', 'pooch'): sys.modules[name] = None\n"
"""Importing them fails from here on as if they were not installed."""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT + code], capture_output=True, text=True, check=False
    )


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return run(f"from pof.cli.main import main\nsys.exit(main({list(words)!r}))")


def test_importing_pof_works() -> None:
    done = run("import pof, numpy; print(pof.__version__, len(dir(pof)))")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["Elastic", "Nested", "attach", "compile", "load", "methods", "models", "plan", "save"]
)
def test_a_name_that_needs_torch_says_so_in_one_line(name: str) -> None:
    done = run(f"import pof\ntry: pof.{name}\nexcept ImportError as e: print(isinstance(e, pof.PofError), e.name, e)")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"True torch pof.{name} needs torch: pip install 'pof[torch]'\n"


def test_names_that_need_none_are_there() -> None:
    done = run("import pof\nprint(pof.PofError, pof.State(0.5, 0.5), pof.open)")
    assert done.returncode == 0, done.stderr


def test_the_command_line_helps_and_inspects() -> None:
    assert command("--version").stdout == f"pof {pof.__version__}\n"
    assert "inspect" in command("--help").stdout
    done = command("inspect", str(SHIPPED))
    assert done.returncode == 0, done.stderr
    assert "pruned at 0.9" in done.stdout
    assert "48 states" in done.stdout
    assert command("inspect", str(SHIPPED), "--json").returncode == 0


ARGUMENTS = {
    "demo": [], "train": [RECIPE], "eval": [SHIPPED], "sweep": [SHIPPED], "choose": [SHIPPED, "--at-least", "0.9"],
    "pack": [SHIPPED, "out.pof"], "unpack": [SHIPPED, "out.pth"], "compile": [SHIPPED], "export": [SHIPPED, "out.pth"],
    "report": [SHIPPED], "fit": [SHIPPED, "--images", ".", "--out", "out.pof"],
}  # fmt: skip


def test_every_verb_is_tried_here() -> None:
    assert {*ARGUMENTS, "inspect", "completion"} == set(VERBS)


@pytest.mark.parametrize("verb", ARGUMENTS)
def test_a_verb_that_needs_torch_says_so_in_one_line(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(verb, *map(str, ARGUMENTS[verb]))
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"pof: pof {verb} needs ")
    assert "pip install 'pof[" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
