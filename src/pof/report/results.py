"""The tables of docs/results.md, from records of runs and the numbers that the paper prints.

python -m pof.report.results                 writes them anew, between the two marks of the file
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pof.errors import PofError
from pof.report.plots import Curve, can_plot, plot_accuracy

BEGIN, END = "<!-- tables: python -m pof.report.results -->", "<!-- end of tables -->"
SPARSITIES = (0.3, 0.5, 0.7, 0.8, 0.9)
BANDS = ((0.1, 0.4), (0.1, 0.6), (0.1, 0.8), (0.3, 0.5), (0.3, 0.7), (0.3, 0.9))
Record = Mapping[str, Any]


def main() -> None:
    """Write the tables anew."""
    page = Path("docs/results.md")
    page.write_text(with_tables(page.read_text(), read_records(Path("results/cifar10")), read_paper()))
    print(page)
    if can_plot():
        print(draw_sizes(Path("results"), Path("docs/images/cifar10.png")))


def draw_sizes(results: Path, path: Path) -> str | Path:
    """The picture of the README: two networks over all sizes, with the statistics that their files keep."""
    curves = {}
    for name, label, color in (("nested", "pof, method nested", "tab:blue"), ("plain", "plain network", "tab:orange")):
        rows = json.loads((results / f"cifar10-resnet20-{name}.json").read_text())["rows"]
        pruned = [(row["sparsity"], row["calibrated"] or row["accuracy"]) for row in rows if _is_pruned(row)]
        curves[f"{label}, pruned"] = Curve(pruned, color)
    title = "CIFAR-10 ResNet-20: one file, any size, no retraining"
    return plot_accuracy(curves, title, path)


def _is_pruned(row: Mapping[str, Any]) -> bool:
    return bool(row["sparsity"] == row["recover_from"])


def read_records(folder: Path) -> list[Record]:
    """The records of all runs that finished."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def read_paper(path: Path = Path("results/paper.json")) -> dict[str, Any]:
    """The numbers of the paper's tables."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def with_tables(page: str, records: Sequence[Record], paper: Mapping[str, Any]) -> str:
    """The page with the tables of these records."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise PofError(f"the page has no {BEGIN!r} and {END!r} to write tables between")
    return "".join((before, BEGIN, "\n\n", tables(records, paper), "\n", END, after))


def tables(records: Sequence[Record], paper: Mapping[str, Any]) -> str:
    """All of them."""
    parts = [_every_size(_of(records, "every_size"))]
    for statistics in ("accuracy", "calibrated"):
        parts.append(_instant(_of(records, "instant"), statistics))
    parts.append(_paper_instant(paper["instant_pruning"]["resnet18"]))
    for statistics in ("accuracy", "calibrated"):
        parts.append(_recovery(_of(records, "instant"), statistics))
    parts += [_paper_recovery(paper["instant_recovery"]["resnet18"]), _fine_tuned(_of(records, "fine_tuned"))]
    parts.append(_paper_fine_tuned(paper["fine_tuned"]))
    return "\n\n".join(part for part in parts if part)


def _of(records: Iterable[Record], table: str) -> list[Record]:
    return [record for record in records if record["table"] == table and record["label"]]


def _every_size(records: Sequence[Record]) -> str:
    if not records:
        return ""
    states = [(0.0, 0.0), (0.5, 0.5), (0.7, 0.7), (0.8, 0.8), (0.9, 0.9), (0.5, 0.9)]
    header = ["method (seed)", "dense", *(_state(*state) for state in states[1:])]
    rows = [[f"{r['label']} ({_seed(r)})", *(_at(r, *state, "calibrated") for state in states)] for r in records]
    about = f"{_epochs(records)}, two passes a step. {_tested(records)}, statistics re-estimated."
    return _titled("One network, every size", about, header, rows)


def _instant(records: Sequence[Record], statistics: str) -> str:
    if not records:
        return ""
    header = ["sparsity", *(r["label"] for r in records)]
    rows = [["dense", *(_at(r, 0.0, 0.0, statistics) for r in records)]]
    rows += [[f"{100 * s:g} %", *(_at(r, s, s, statistics) for r in records)] for s in SPARSITIES]
    about = f"{_epochs(records)}; + is from scratch. {_tested(records)}."
    return _titled(f"Instant pruning, {_NAMES[statistics]}", about, header, rows)


def _recovery(records: Sequence[Record], statistics: str) -> str:
    if not records:
        return ""
    bands = [*BANDS, (0.35, 0.8), (0.4, 0.7)]
    header = ["band", *(r["label"] for r in records)]
    rows = [[f"{100 * a:g}-{100 * b:g}", *(_at(r, a, b, statistics) for r in records)] for a, b in bands]
    about = f"The band is filled with alpha * sign(w). {_tested(records)}."
    return _titled(f"Instant recovery, {_NAMES[statistics]}", about, header, rows)


def _fine_tuned(records: Sequence[Record]) -> str:
    if not records:
        return ""
    sparsities = sorted({r["sparsity"] for r in records if r["sparsity"] is not None}, reverse=True)
    labels = list(dict.fromkeys(r["label"] for r in records))
    rows = []
    for label in labels:
        row = [label]
        for sparsity in sparsities:
            found = [r for r in records if r["label"] == label and r["sparsity"] in (sparsity, None)]
            values = [r["accuracy"] if r["sparsity"] else _value(r, sparsity, sparsity, "calibrated") for r in found]
            row.append(", ".join(_percent(value) for value in values) or "")
        rows.append(row)
    about = f"All have the same forward-backward passes. {_tested(records)}; one figure a seed."
    return _titled("Fine-tuned at a sparsity", about, ["method", *(f"{100 * s:g} %" for s in sparsities)], rows)


def _paper_instant(found: Mapping[str, Any]) -> str:
    rows = [["dense", *map(_number, found["dense"])]]
    rows += [[f"{100 * float(s):g} %", *map(_number, found[s])] for s in ("0.3", "0.5", "0.7")]
    return _titled("The paper: instant pruning, ImageNet, ResNet-18", "", ["sparsity", *found["columns"]], rows)


def _paper_recovery(found: Mapping[str, Any]) -> str:
    bands = [key for key in found if key != "columns"]
    rows = [[_band(key), *map(_number, found[key])] for key in bands]
    return _titled("The paper: instant recovery, ImageNet, ResNet-18", "", ["band", *found["columns"]], rows)


def _paper_fine_tuned(found: Mapping[str, Any]) -> str:
    rows = []
    for network in ("resnet18", "resnet50"):
        dense = found[network]["dense"]
        for key in (key for key in found[network] if key != "dense"):
            values = zip(found[network][key], dense, strict=True)
            cells = [_number(v) if v is None else f"{v:.2f} ({v - d:+.2f})" for v, d in values]
            rows.append([f"{network}, {100 * float(key):g} %", *cells])
    about = "In brackets the difference to the dense network, computed here: the paper misprints some."
    return _titled("The paper: fine-tuned, ImageNet", about, ["network, sparsity", *found["columns"]], rows)


_NAMES = {"accuracy": "as trained", "calibrated": "BatchNorm statistics re-estimated"}


def _titled(title: str, about: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"### {title}", ""] + ([about, ""] if about else [])
    lines += [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _value(record: Record, low: float, high: float, statistics: str) -> float | None:
    for row in record["states"]:
        if (row["recover_from"], row["sparsity"]) == (low, high):
            found: float | None = row[statistics]
            # The dense network's statistics are its own.
            return row["accuracy"] if found is None and high == 0.0 else found
    return None


def _at(record: Record, low: float, high: float, statistics: str) -> str:
    return _percent(_value(record, low, high, statistics))


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _state(low: float, high: float) -> str:
    return f"{100 * high:g} %" if low == high else f"{100 * low:g}-{100 * high:g} recovered"


def _band(key: str) -> str:
    return "-".join(f"{100 * float(end):g}" for end in key.split("-"))


def _seed(record: Record) -> str:
    return f"seed {record['recipe']['run']['seed']}"


def _epochs(records: Sequence[Record]) -> str:
    counts = sorted({r["recipe"]["run"]["epochs"] for r in records})
    return f"{' or '.join(map(str, counts))} epochs"


def _tested(records: Sequence[Record]) -> str:
    return f"CIFAR-10 {records[0]['recipe']['model']['name']}, {records[0]['test_images']:,} test images"


if __name__ == "__main__":
    main()
