"""The tables of docs/results.md, from the records of runs and the numbers in the paper."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from lab import paper_tables
from lab.markdown import titled
from lab.paper_tables import Paper
from pof.errors import PofError

SPARSITIES = (0.3, 0.5, 0.7, 0.8, 0.9)
BANDS = ((0.1, 0.4), (0.1, 0.6), (0.1, 0.8), (0.3, 0.5), (0.3, 0.7), (0.3, 0.9))
PEERS = {(0.35, 0.8): "tr=0.95", (0.4, 0.7): "tr=0.9"}
"""The bands, and the tr of each, that the paper compares with DPF and DSR at the same sparsity."""
RESNETS = {"resnet18": "ResNet-18", "resnet50": "ResNet-50"}
MOBILENET = "mobilenet-dense-"
"""The beginning of the name of the dense MobileNetV2, which all runs of its tables start from."""
Record = Mapping[str, Any]
STATISTICS = {"accuracy": "as trained", "calibrated": "BatchNorm statistics re-estimated"}


def tables(records: Sequence[Record], paper: Paper, dense: float) -> str:
    """Return all tables; `dense` is the accuracy of the network that fine-tuning started from."""
    instant, mobile = _of(records, "instant"), [r for r in records if r["table"] == "mobilenet"]
    parts = [_every_size(_of(records, "every_size"), statistics) for statistics in ("calibrated", "accuracy")]
    for statistics in STATISTICS:
        parts.append(_instant(instant, SPARSITIES, statistics, "Instant pruning"))
    parts += [paper_tables.instant_pruning(paper["instant_pruning"][name], title) for name, title in RESNETS.items()]
    for statistics in STATISTICS:
        parts.append(_recovery(instant, (*BANDS, *PEERS), statistics, "Instant recovery"))
    parts += [paper_tables.instant_recovery(paper["instant_recovery"][name], title) for name, title in RESNETS.items()]
    parts.append(_beside_peers(records, dense))
    parts.append(paper_tables.beside_peers(paper["instant_recovery"]["resnet50_vs_peers"]))
    for passes in sorted({total_passes(r, records) for r in _of(records, "fine_tuned")}):
        parts.append(_fine_tuned(_compared(records, passes), passes, dense))
    parts.append(paper_tables.fine_tuned(paper["fine_tuned"], ("resnet18", "resnet50")))
    if mobile:
        parts += _mobilenet(mobile, paper)
    return "\n\n".join(part for part in parts if part)


def value(record: Record, low: float, high: float, statistics: str, scope: str = "layer") -> float | None:
    """Return the accuracy of a state, from 0 to 1; None if it was not tested."""
    for row in record["states"]:
        if (row["recover_from"], row["sparsity"], row.get("scope", "layer")) == (low, high, scope):
            found: float | None = row[statistics]
            # The dense network's statistics are its own.
            return row["accuracy"] if found is None and high == 0.0 else found
    return None


def trained_scope(record: Record) -> str:
    """Return how the network was pruned while it was trained for all sizes; "layer" if it was not."""
    found: str = record["recipe"].get("settings", {}).get("scope", "layer")
    return found


def total_passes(record: Record, records: Iterable[Record]) -> int:
    """Return epochs times passes per step, including the run that it starts from, unless that is a dense network."""
    own: int = round(record["passes"] * record["recipe"]["run"]["epochs"])
    if not record["after"] or record["after"].startswith(MOBILENET):
        return own
    before = next((r for r in records if r["name"] == record["after"]), None)
    if before is None:
        raise PofError(f"{record['name']} starts from {record['after']}, of which there is no record: add it")
    return own + total_passes(before, records)


def _of(records: Iterable[Record], table: str) -> list[Record]:
    return [record for record in records if record["table"] == table and record["label"]]


def _every_size(records: Sequence[Record], statistics: str) -> str:
    if not records:
        return ""
    states = [(0.0, 0.0), (0.5, 0.5), (0.7, 0.7), (0.8, 0.8), (0.9, 0.9), (0.5, 0.9)]
    rows = [
        [r["label"], _seed(r), str(_epochs(r)), scope, *(_at(r, *state, statistics, scope) for state in states)]
        for r in records
        for scope in dict.fromkeys(row.get("scope", "layer") for row in r["states"])
    ]
    header = ["method", "seed", "epochs", "pruned by", "dense", *(_state(*state) for state in states[1:])]
    title = f"One network, every size, {STATISTICS[statistics]}"
    return titled(title, f"Two passes per step. {_tested(records)}.", header, rows)


def _instant(records: Sequence[Record], sparsities: Sequence[float], statistics: str, title: str) -> str:
    if not records:
        return ""
    rows = [["dense", *(_at(r, 0.0, 0.0, statistics) for r in records)]]
    rows += [[f"{100 * s:g} %", *(_at(r, s, s, statistics) for r in records)] for s in sparsities]
    header = ["sparsity", *(_column(r) for r in records)]
    return titled(f"{title}, {STATISTICS[statistics]}", f"{_tested(records)}; + is from scratch.", header, rows)


def _recovery(records: Sequence[Record], bands: Sequence[tuple[float, float]], statistics: str, title: str) -> str:
    if not records:
        return ""
    rows = [[f"{100 * a:g}-{100 * b:g}", *(_at(r, a, b, statistics) for r in records)] for a, b in bands]
    about = f"The band is filled with alpha * sign(w). {_tested(records)}."
    return titled(f"{title}, {STATISTICS[statistics]}", about, ["band", *(_column(r) for r in records)], rows)


def _beside_peers(records: Sequence[Record], dense: float) -> str:
    """Compare one network of ours, recovered, with others' networks that were trained for one sparsity."""
    rows: list[list[str]] = []
    for (low, high), tr in PEERS.items():
        others = [r for r in _of(records, "fine_tuned") if r["label"] in ("DSR", "DPF") and r["sparsity"] == high]
        ours = [r for r in _of(records, "instant") if r["label"] == tr]
        if not others or not ours:
            continue
        for r in others:
            cells = [f"{100 * high:g} %", f"{100 * dense:.2f}", _with_difference(r["accuracy"], dense), ""]
            rows.append([r["label"], _seed(r), str(total_passes(r, records)), *cells])
        for r in ours:
            itself = value(r, 0.0, 0.0, "accuracy")
            found = [value(r, low, high, statistics) for statistics in STATISTICS]
            if itself is not None:
                cells = ["" if each is None else _with_difference(each, itself) for each in found]
                state = [f"{100 * low:g}-{100 * high:g}", f"{100 * itself:.2f}"]
                rows.append([f"POF {tr}", _seed(r), str(total_passes(r, records)), *state, *cells])
    header = ["method", "seed", "passes", "sparsity or band", "dense", "as trained", "re-estimated"]
    about = "DSR and DPF train one network for the sparsity; a recovered one has more weights that are not zero."
    return titled("Instant recovery beside other methods", about, header, rows) if rows else ""


def _compared(records: Sequence[Record], passes: int) -> list[Record]:
    """Return the records with that many passes, trained for one sparsity or for all at once."""
    whole = [{**r, "label": f"{r['label']}, all sizes at once"} for r in _of(records, "every_size")]
    found: list[Record] = [*_of(records, "fine_tuned"), *whole]
    return [record for record in found if total_passes(record, records) == passes]


def _fine_tuned(records: Sequence[Record], passes: int, dense: float, title: str = "Fine-tuned at a sparsity") -> str:
    if not records:
        return ""
    sparsities = sorted({r["sparsity"] for r in records if r["sparsity"] is not None}, reverse=True)
    found = {
        label: [_tuned(records, label, s) for s in sparsities] for label in dict.fromkeys(r["label"] for r in records)
    }
    # The best first, by the mean over seeds at the highest sparsity.
    best = sorted(found, key=lambda label: [mean(values or [0.0]) for values in found[label]], reverse=True)
    rows = [
        [label, *(", ".join(_with_difference(v, dense) for v in values) for values in found[label])] for label in best
    ]
    about = (
        f"All have {passes} forward-backward passes over the training images, a teacher's forward pass for a third of "
        f"one. {_tested(records)}; one figure per seed; "
        f"in brackets the difference to the dense network that all began with, {100 * dense:.2f}. "
        "BatchNorm statistics are those of the training; of networks for all sizes at once, re-estimated."
    )
    return titled(f"{title}, {passes} passes", about, ["method", *(f"{100 * s:g} %" for s in sparsities)], rows)


def _tuned(records: Sequence[Record], label: str, sparsity: float) -> list[float]:
    """Return the accuracy at a sparsity for each seed of the method called `label`."""
    found = [r for r in records if r["label"] == label and r["sparsity"] in (sparsity, None)]
    values = (r["accuracy"] if r["sparsity"] else _as_trained_for(r, sparsity) for r in found)
    return [value for value in values if value is not None]


def _as_trained_for(record: Record, sparsity: float) -> float | None:
    """Return the accuracy at one sparsity of a network for all sizes, pruned as in training."""
    return value(record, sparsity, sparsity, "calibrated", trained_scope(record))


def _mobilenet(records: Sequence[Record], paper: Paper) -> list[str]:
    instant = [r for r in records if r["sparsity"] is None and r["label"]]
    tuned = [r for r in records if r["sparsity"] is not None]
    parts = []
    for statistics in STATISTICS:
        parts.append(_instant(instant, (0.1, 0.2, 0.3, 0.4), statistics, "MobileNetV2, instant pruning"))
    parts.append(paper_tables.instant_pruning(paper["instant_pruning"]["mobilenet_v2"], "MobileNetV2"))
    for statistics in STATISTICS:
        parts.append(_recovery(instant, BANDS, statistics, "MobileNetV2, instant recovery"))
    parts.append(paper_tables.instant_recovery(paper["instant_recovery"]["mobilenet_v2"], "MobileNetV2"))
    for start in (r for r in records if r["name"].startswith(MOBILENET)):
        own = [r for r in tuned if _dense_start(r, records) == start["name"]]
        for passes in sorted({total_passes(r, records) for r in own}):
            same = [r for r in own if total_passes(r, records) == passes]
            parts.append(_fine_tuned(same, passes, start["accuracy"], "MobileNetV2, fine-tuned at a sparsity"))
    parts.append(paper_tables.fine_tuned(paper["fine_tuned"], ("mobilenet_v2",)))
    return parts


def _dense_start(record: Record, records: Sequence[Record]) -> str:
    """Return the name of the dense MobileNetV2 that a run started from, perhaps by way of another run."""
    after: str = record["after"]
    before = next((r for r in records if r["name"] == after), None)
    return after if before is None or after.startswith(MOBILENET) else _dense_start(before, records)


def _column(record: Record) -> str:
    return f"{record['label']}, {_epochs(record)} ep., seed {_seed(record)}"


def _at(record: Record, low: float, high: float, statistics: str, scope: str = "layer") -> str:
    found = value(record, low, high, statistics, scope)
    return "" if found is None else f"{100 * found:.2f}"


def _with_difference(found: float, dense: float) -> str:
    return f"{100 * found:.2f} ({100 * (found - dense):+.2f})"


def _state(low: float, high: float) -> str:
    return f"{100 * high:g} %" if low == high else f"{100 * low:g}-{100 * high:g} recovered"


def _seed(record: Record) -> str:
    return str(record["recipe"]["run"]["seed"])


def _epochs(record: Record) -> int:
    found: int = record["recipe"]["run"]["epochs"]
    return found


def _tested(records: Sequence[Record]) -> str:
    return f"CIFAR-10 {records[0]['recipe']['model']['name']}, {records[0]['test_images']:,} test images"
