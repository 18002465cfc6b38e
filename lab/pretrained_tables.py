"""The tables of docs/results.md about pretrained networks, from the records of `lab.fit_imagenet`."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.markdown import titled

TITLES = {"resnet50": "ResNet-50", "mobilenet_v2": "MobileNetV2"}
Record = Mapping[str, Any]


def pretrained_tables(records: Sequence[Record]) -> str:
    """One table for each network."""
    return "\n\n".join(map(_table, records))


def _table(record: Record) -> str:
    stages = [stage for stage in record["fit"]["stages"] if stage["name"] in ("least squares", "training")]
    took = ", ".join(f"{stage['name']} {stage['seconds'] / 60:.1f} min" for stage in stages)
    whole = sum(stage["seconds"] for stage in record["fit"]["stages"]) / 60
    sentences = [
        f"Top-1, {record['tested_on']}",
        f"Fitted in {whole:.0f} minutes ({took}) to {record['fitted_to']} images without labels, one network and one "
        "file for all columns",
        record["fit"]["advice"],
        *record.get("remarks", []),
    ]
    about = " ".join(f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}." for sentence in sentences)
    rows = [[name, *map(_accuracy, figures)] for name, figures in record["top1"].items()]
    for name, sizes in record.get("bytes_read", {}).items():
        rows.append([f"MB read, {name}", *(f"{size / 1e6:.1f}" for size in sizes)])
    states = [state.removeprefix("pruned at ").replace("recovered ", "filled ") for state in record["states"]]
    return titled(f"Pretrained, ImageNet, {TITLES[record['network']]}", about, ["", *states], rows)


def _accuracy(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
