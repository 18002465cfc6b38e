"""Each script in examples/ runs as written, and shows what its docstring says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pof.core.library import core
from pof.data import shipped
from pof.file.pof_file import PofFile

EXAMPLES = Path(__file__).parents[2] / "examples"
LIGHTNING = ("ignore:`isinstance(treespec", "ignore:The 'train_dataloader' does not have many workers")
"""Its own warnings, which are none of ours."""


def run(name: str, *warnings: str) -> str:
    """What the script prints; any other warning is an error."""
    filters = [f"-W{warning}" for warning in ("error", *warnings)]
    found = subprocess.run(
        [sys.executable, *filters, EXAMPLES / name], capture_output=True, text=True, timeout=230, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def shares(line: str) -> list[float]:
    """The figures of a line that are per cent, as shares of 1."""
    return [float(figure) / 100 for figure in re.findall(r"([\d.]+)%", line)]


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text("utf-8")
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if f'"{path.name}"' not in source] == []


@pytest.mark.timeout(240)
def test_own_loop() -> None:
    rows = {line.split()[0]: shares(line) for line in run("own_loop.py").splitlines()}
    assert rows["sparsity"] == [0.0, 0.5, 0.8, 0.9]
    assert rows["nested"][0] > 0.9
    assert rows["nested"][-1] > max(0.85, rows["plain"][-1])


@pytest.mark.timeout(240)
def test_with_lightning() -> None:
    pytest.importorskip("lightning")
    first, *rows = run("with_lightning.py", *LIGHTNING).splitlines()
    assert first == "penalty joined 126 steps"
    assert [shares(row)[0] for row in rows] == [0.0, 0.5, 0.7]
    assert all(shares(row)[1] > 0.9 for row in rows)


@pytest.mark.timeout(240)
def test_with_hugging_face() -> None:
    pytest.importorskip("transformers")
    rows = [shares(line) for line in run("with_hugging_face.py").splitlines() if "zeros" in line]
    assert [sparsity for sparsity, _ in rows] == [0.0, 0.5, 0.7]
    assert all(accuracy > 0.8 for _, accuracy in rows)


@pytest.mark.timeout(240)
def test_progressive_download() -> None:
    pytest.importorskip("aiohttp")
    file = PofFile(shipped.network("cifar10-resnet20-nested"))
    needed = [file.bytes_for(0.9), file.bytes_for(0.9, 0.7), file.bytes_for(0.7), file.size]
    rows = run("progressive_download.py").splitlines()
    sent = [int(re.search(r"([\d,]+) of", row)[1].replace(",", "")) for row in rows]
    assert sent == needed
    accuracies = [shares(row)[-1] for row in rows]
    assert accuracies[0] > 0.8
    assert min(accuracies[1:]) > accuracies[0]


@pytest.mark.timeout(240)
@pytest.mark.skipif(core() is None, reason="the runtime needs the compiled core")
def test_speed_on_a_cpu() -> None:
    printed = run("speed_on_a_cpu.py")
    rows = [line.split() for line in printed.splitlines() if re.match(r" +\d\d% ", line)]
    assert [row[0] for row in rows] == ["50%", "70%", "90%"]
    assert all(float(row[-1]) < 1e-4 for row in rows)
    assert "layer3.2.conv2  conv 3x3" in printed
