"""docs/results.md and its pictures, from the records of runs.

python -m lab.results_page                 writes the tables anew, between the two marks of the page
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.command_line import LAB
from lab.plots import BarPanel, Curve, Histogram, can_plot, plot_histograms, plot_panels, plot_sizes
from lab.pretrained_tables import PretrainedRecords, pretrained_tables, read_pretrained, read_records
from lab.result_tables import Record, tables, trained_scope, value
from pof.errors import PofError

DOCS = LAB.parent / "docs"
DEMO = LAB.parent / "bench/records/demo.json"
BEGIN, END = "<!-- tables: python -m lab.results_page -->", "<!-- end of tables -->"
COLORS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown", "tab:pink", "tab:gray")
FIGURE = ("0", "0.9", "0.7", "0.5")
"""Values of tr in the figure of weight distributions."""


def main() -> None:
    """Write the tables and draw the pictures anew."""
    argparse.ArgumentParser(
        prog="python -m lab.results_page",
        description="Write the tables of docs/results.md and draw the pictures anew.",
    ).parse_args()
    page, results, images = DOCS / "results.md", LAB / "records", DOCS / "images"
    records = read_records(results / "cifar10")
    pretrained = read_pretrained(results)
    page.write_text(with_tables(page.read_text(), records, read_paper(), dense_accuracy(), pretrained))
    print(page)
    if can_plot():
        print(draw_sizes(results, DEMO, images / "sizes.png"))
        for picture in (draw_methods(records, images / "methods.png"), draw_weights(records, images / "weights.png")):
            if picture is not None:
                print(picture)


def draw_sizes(records: Path, demo: Path, path: Path) -> str | Path:
    """The picture of the README: accuracy of two networks, with the bytes and the speed of the first.

    Accuracies are with the statistics that the files keep.
    """
    curves = {
        "pof: one network, nested training": Curve(_accuracies(records / "cifar10-resnet20-nested.json"), "#1f5fa8"),
        "plain network, pruned by magnitude": Curve(_accuracies(records / "cifar10-resnet20-plain.json"), "#d9730d"),
    }
    rows = json.loads(demo.read_text())["rows"]
    read = [(row["sparsity"], row["bytes"], f"{row['bytes'] / 1000:.0f} kB") for row in rows]
    speed = [(row["sparsity"], row["speedup"], f"{row['speedup']:.1f}x") for row in rows]
    below = [BarPanel("bytes read of its one file", read), BarPanel("speed on a CPU, against dense torch", speed)]
    return plot_sizes("CIFAR-10 ResNet-20: one set of weights, every size", curves, below, path)


def _accuracies(record: Path) -> list[tuple[float, float]]:
    """Sparsities and accuracies of the pruned states."""
    rows = json.loads(record.read_text())["rows"]
    return [(row["sparsity"], row["calibrated"] or row["accuracy"]) for row in rows if _is_pruned(row)]


def draw_methods(records: Sequence[Record], path: Path) -> str | Path | None:
    """Accuracy over sparsity of one network a method, without fine-tuning; beside it those fine-tuned at a sparsity."""
    first = [r for r in records if r["recipe"]["run"]["seed"] == 0 and r["label"] and "-quick-" in r["name"]]
    whole: dict[str, list[tuple[float, float]]] = {}
    for record in (r for r in first if r["table"] in ("every_size", "instant")):
        scope = trained_scope(record)
        rows = [row for row in record["states"] if _is_pruned(row) and row.get("scope", "layer") == scope]
        states = [
            (row["sparsity"], value(record, row["sparsity"], row["sparsity"], "calibrated", scope)) for row in rows
        ]
        whole[record["label"]] = sorted((sparsity, found) for sparsity, found in states if found is not None)
    tuned: dict[str, list[tuple[float, float]]] = {}
    for record in (r for r in first if r["table"] == "fine_tuned" and r["sparsity"]):
        tuned.setdefault(record["label"], []).append((record["sparsity"], record["accuracy"]))
    panels = {"One network, no fine-tuning": _curves(whole)} | (
        {"One network for each sparsity": _curves({label: sorted(points) for label, points in tuned.items()})}
        if len(tuned) > 1
        else {}
    )
    return plot_panels(panels, path, lowest=0.7) if len(whole) > 1 else None


def _curves(lines: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Curve]:
    """Each with a colour, and when these are used up another marker."""
    looks = ((color, marker) for marker in "os^" for color in COLORS)
    return {
        label: Curve(points, look[0], marker=look[1])
        for (label, points), look in zip(lines.items(), looks, strict=False)
    }


def draw_weights(records: Sequence[Record], path: Path) -> str | Path | None:
    """The paper's figure: one layer's weights for several tr, and after fine-tuning at 60 %."""
    found = {record["name"].removesuffix("-quick-0"): record.get("histogram") for record in records}
    grid = [
        [_histogram(found.get(f"tr{tr}"), f"tr = {tr}") for tr in FIGURE],
        [_histogram(found.get(f"tr{tr}-one_shot-0.6"), f"tr = {tr}, fine-tuned at 60 %") for tr in FIGURE],
    ]
    if any(cell is None for row in grid for cell in row):
        return None
    return plot_histograms([[cell for cell in row if cell is not None] for row in grid], path)


def _histogram(counts: Mapping[str, Any] | None, title: str) -> Histogram | None:
    if counts is None:
        return None
    return Histogram(title, counts["widest"], counts["pruned"], counts["kept"], counts["zeros"])


def _is_pruned(row: Mapping[str, Any]) -> bool:
    return bool(row["sparsity"] == row["recover_from"])


def read_paper(path: Path = LAB / "records/paper.json") -> dict[str, Any]:
    """The numbers of the paper's tables."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def dense_accuracy(path: Path = LAB / "records/cifar10-resnet20-dense.json") -> float:
    """Of the network that fine-tuning begins with."""
    found: float = json.loads(path.read_text())["accuracy"]
    return found


def with_tables(
    page: str, records: Sequence[Record], paper: Mapping[str, Any], dense: float, pretrained: PretrainedRecords
) -> str:
    """The page with the tables of these records."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PofError(f"the page has no {BEGIN!r} and {END!r} to write tables between")
    written = "\n\n".join(filter(None, (pretrained_tables(pretrained), tables(records, paper, dense))))
    return "".join((before, BEGIN, "\n\n", written, "\n", END, after))


if __name__ == "__main__":
    main()
