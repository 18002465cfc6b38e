"""The README's code runs as written, in order."""

import json
import re
from pathlib import Path

import pytest

import pof
from pof.data import shipped

README = Path(__file__).parents[2] / "README.md"
PAGES = [README, *sorted((README.parent / "docs").rglob("*.md"))]


def test_code_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert names["elastic"].state == (0.0, 0.0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["training", "file", "runtime", "index", "quickstart", "guide"])
def test_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = README.parent / "docs" / f"{name}.md"
    (tmp_path / "recipes").symlink_to(README.parent / "recipes")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), names)
    assert names
    assert name != "training" or names["outcome"].finished


def test_the_tests_that_the_faq_names_exist() -> None:
    sources = "\n".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py"))
    named = re.findall(r"::(test_\w+)", (README.parent / "docs" / "faq.md").read_text())
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in sources] == []


def test_figures_are_those_of_the_records() -> None:
    results = README.parent / "results"
    switch = json.loads((results / "switch_sparsity.json").read_text())
    step = json.loads((results / "training_step.json").read_text())
    loops = [json.loads((results / f"training_throughput{end}.json").read_text()) for end in ("", "_one_thread")]
    milliseconds = switch["milliseconds"]
    figures = [
        f"| {switch['times_faster_than_torch']:.0f}x faster |",
        f"| {switch['times_a_plain_copy']:.2f}x its time |",
        f"| {switch['times_faster_than_torch_with_unit_magnitudes']:.1f}x faster |",
        f"| {switch['first_call_milliseconds']:.0f} ms; {milliseconds['pof, recover']:.0f} ms |",
        f"| {switch['bytes_a_weight_beside_the_dense_copy']:.2f} bytes a weight |",
        f"| {step['times_the_plain_step']:.3f}x its time |",
        *(
            f"| {loop['throughput_of_dense_against_the_hand_written_loop']:.3f}x; "
            f"{loop['throughput_of_pof_against_the_hand_written_loop']:.3f}x its speed |"
            for loop in loops
        ),
    ]
    runtime = json.loads((results / "runtime.json").read_text())["cases"]
    for name in ("resnet18-1", "resnet50-1", "mobilenet_v2-1"):
        for peer in ("the better torch", "ONNX Runtime"):
            ours = [v for key, v in runtime[name][f"times as fast as {peer}"].items() if key.startswith("pof")]
            figures.append(" / ".join(f"{value:.2f}x" for value in ours))
    for name in ("nested", "plain"):
        rows = json.loads((results / f"cifar10-resnet20-{name}.json").read_text())["rows"]
        found = {(row["recover_from"], row["sparsity"]): row["calibrated"] or row["accuracy"] for row in rows}
        states = [(s, s) for s in (0.0, 0.5, 0.7, 0.8, 0.9)] + ([(0.5, 0.9)] if name == "nested" else [])
        figures.append("| " + " | ".join(f"{100 * found[state]:.2f}" for state in states) + " |")
    file = pof.open(shipped.network("cifar10-resnet20-nested"))
    figures += [
        f"{file.size:,} bytes",
        "| "
        + " | ".join(f"{file.bytes_for(s):,}" for s in (0.0, 0.5, 0.7, 0.8, 0.9))
        + f" | {file.bytes_for(0.9, 0.5):,} |",
    ]
    demo = json.loads((results / "demo.json").read_text())["rows"]
    speeds = [*(row["speedup"] for row in demo), demo[-1]["recovered_speedup"]]
    figures.append("| " + " | ".join(f"{speed:.2f}x" for speed in speeds) + " |")
    speeds_by_scope = json.loads((results / "scopes.json").read_text())["rows"]
    for name, scope in (("nested", "global"), ("nested-layer", "layer")):
        rows = json.loads((results / f"cifar10-resnet20-{name}.json").read_text())["rows"]
        found = {(row["recover_from"], row["sparsity"]): row["calibrated"] or row["accuracy"] for row in rows}
        cells = []
        for row in speeds_by_scope:
            state = (row["sparsity"] if row["recover_from"] is None else row["recover_from"], row["sparsity"])
            cells.append(f"{100 * found[state]:.2f}, {row['times_as_fast_as_torch'][scope]:.2f}x")
        figures.append("| " + " | ".join(cells) + " |")
    text = README.read_text()
    assert [figure for figure in figures if figure not in text] == []
