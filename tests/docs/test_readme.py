"""The README's code runs as written and prints what it says; its figures, and those of the results, are of records."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pof
from pof.core.library import core
from pof.data import shipped
from pof.data.digit_images import digits

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
TEXT = README.read_text()
DOCS = ROOT / "docs"
BENCHES, RUNS = ROOT / "bench" / "records", ROOT / "lab" / "records"
STATES = ((0.0, 0.0), (0.5, 0.5), (0.7, 0.7), (0.8, 0.8), (0.9, 0.9), (0.5, 0.9))


def record(path: Path) -> Any:
    return json.loads(path.read_text())


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run_blocks(page: Path, names: dict[str, Any], which: slice = slice(None)) -> None:
    for block in blocks(page)[which]:
        exec(compile(block, str(page), "exec"), names)


def test_it_is_read_in_two_minutes() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= 120
    assert len(TEXT.split()) <= 900
    assert lines.index("```python") < 25
    assert len([line for line in blocks(README)[0].splitlines() if line]) <= 10
    assert "`make test`" in TEXT
    assert "`make check`" in TEXT


PRINTED = re.compile(r"^(nested|dense) +(\d+)% zeros: ([\d.]+)% right, ([\d,]+) bytes$", re.MULTILINE)


def test_the_ten_lines_print_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    run_blocks(README, {}, slice(1))
    found, said = PRINTED.findall(capsys.readouterr().out), PRINTED.findall(TEXT)
    assert len(said) == 6
    # One image of 2,000 more or less: processors round differently.
    assert [row[:2] + row[3:] for row in found] == [row[:2] + row[3:] for row in said]
    assert [float(row[2]) for row in found] == pytest.approx([float(row[2]) for row in said], abs=0.1)
    rows = {row["sparsity"]: row for row in record(BENCHES / "demo.json")["rows"]}
    for name, sparsity, accuracy, size in said:
        row = rows[int(sparsity) / 100]
        assert accuracy == f"{100 * row['pruned' if name == 'nested' else 'plain']:.2f}"
        assert name != "nested" or size == f"{row['bytes']:,}"


@pytest.mark.skipif(core() is None, reason="the runtime needs the compiled core")
def test_adapt_ship_and_run_do_what_the_readme_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images, labels = digits("test")

    def accuracy(model: torch.nn.Module) -> float:
        with torch.no_grad():
            return float((model(images).argmax(1) == labels).float().mean())

    names: dict[str, Any] = {"torch": torch, "pof": pof}
    run_blocks(README, names, slice(1, 3))
    model, elastic = names["model"], names["elastic"]
    assert elastic.state == (0.0, 0.0)
    dense = accuracy(model)
    assert dense > 0.95
    fresh = pof.Elastic(model)
    fresh.prune(0.9)
    assert accuracy(model) < 0.5, "the README says that it falls without statistics of its own"
    fresh.calibrate([names["images"]])
    assert accuracy(model) > dense - 0.02, "and that it is as good as dense with them"
    fresh.restore()
    run_blocks(README, names, slice(3, None))
    assert accuracy(model) > dense - 0.02
    assert torch.allclose(names["outputs"], model(names["images"][:16]), atol=1e-3)


def test_figures_are_those_of_the_records() -> None:
    found, text = figures(), (DOCS / "results.md").read_text()
    assert [figure for figure in found if figure not in text] == []


def figures() -> list[str]:
    """What docs/results.md must say, as it says it."""
    return [*speed_figures(), *size_figures()]


def speed_figures() -> list[str]:
    switch, step = record(BENCHES / "switch_sparsity.json"), record(BENCHES / "training_step.json")
    loops = [record(BENCHES / f"training_throughput{end}.json") for end in ("", "_one_thread")]
    found = [
        f"| {switch['times_faster_than_torch']:.0f}x faster |",
        f"| {switch['times_a_plain_copy']:.2f}x its time |",
        f"| {switch['times_faster_than_torch_with_unit_magnitudes']:.1f}x faster |",
        f"| {switch['first_call_milliseconds']:.0f} ms; {switch['milliseconds']['pof, recover']:.0f} ms |",
        f"| {switch['bytes_a_weight_beside_the_dense_copy']:.2f} bytes per weight |",
        f"| {step['times_the_plain_step']:.3f}x its time |",
        *(
            f"| {loop['throughput_of_dense_against_the_hand_written_loop']:.3f}x; "
            f"{loop['throughput_of_pof_against_the_hand_written_loop']:.3f}x its speed |"
            for loop in loops
        ),
    ]
    for name in ("resnet18-1", "resnet50-1", "mobilenet_v2-1"):
        found += [" / ".join(f"{times:.2f}x" for times in speeds(name, peer)) for peer in PEERS]
    return found


PEERS = ("the better torch", "ONNX Runtime")


def speeds(name: str, peer: str) -> list[float]:
    """How many times as fast `pof.compile` is as a peer, by rising sparsity."""
    times = record(BENCHES / "runtime.json")["cases"][name][f"times as fast as {peer}"]
    return [value for key, value in times.items() if key.startswith("pof")]


def states(name: str) -> dict[tuple[float, float], float]:
    """Accuracies of a network, by (recover_from, sparsity), with the state's own statistics."""
    rows = record(RUNS / f"cifar10-resnet20-{name}.json")["rows"]
    return {(row["recover_from"], row["sparsity"]): row["calibrated"] or row["accuracy"] for row in rows}


def size_figures() -> list[str]:
    found = [f"{(file := pof.open(shipped.network('cifar10-resnet20-nested'))).size:,} bytes"]
    for name in ("nested", "plain", "nested-seed1", "tr0-full-global"):
        chosen = STATES[: 5 if name == "plain" else 6]
        found.append("| " + " | ".join(f"{100 * states(name)[state]:.2f}" for state in chosen) + " |")
    reads = [file.bytes_for(high) if low == high else file.bytes_for(high, low) for low, high in STATES]
    demo = record(BENCHES / "demo.json")["rows"]
    times = [*(row["speedup"] for row in demo), demo[-1]["recovered_speedup"]]
    found += [
        "| " + " | ".join(f"{size:,}" for size in reads) + " |",
        "| " + " | ".join(f"{each:.2f}x" for each in times) + " |",
    ]
    for name, scope in (("nested", "global"), ("nested-layer", "layer")):
        cells = []
        for row in record(BENCHES / "scopes.json")["rows"]:
            state = (row["sparsity"] if row["recover_from"] is None else row["recover_from"], row["sparsity"])
            cells.append(f"{100 * states(name)[state]:.2f}, {row['times_as_fast_as_torch'][scope]:.2f}x")
        found.append("| " + " | ".join(cells) + " |")
    return found


def test_the_readmes_table_has_at_most_eight_figures_and_all_are_of_records() -> None:
    (table,) = re.findall(r"^\| \| \|\n\| --- \| --- \|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    cells = [re.sub(r"\(\[record\].*", "", row.split("|")[2]) for row in table.splitlines()]
    said = [figure for cell in cells for figure in re.findall(r"[\d,.]+(?:x| %)?", cell)]
    assert len(said) <= 8
    demo = record(BENCHES / "demo.json")
    resnet50 = record(BENCHES / "file_size.json")["networks"]["resnet50"]["states"][0]
    assert (resnet50["sparsity"], resnet50["recover_from"]) == (0.7, None)
    assert said == [
        f"{100 * states('nested')[0.9, 0.9]:.2f} %",
        f"{100 * states('plain')[0.9, 0.9]:.2f} %",
        f"{demo['rows'][-1]['bytes']:,}",
        f"{demo['file_bytes']:,}",
        *(f"{speeds('resnet18-1', peer)[-1]:.2f}x" for peer in PEERS),
        f"{record(BENCHES / 'switch_sparsity.json')['times_faster_than_torch']:.0f}x",
        f"{resnet50['times_smaller']['xz -6']:.2f}x",
    ]
