"""The tables of docs/results.md about pretrained networks, from the records of `lab.fit_*`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.markdown import titled
from pof.ranking.sparsity_state import State

TITLES = {"resnet20": "ResNet-20", "resnet50": "ResNet-50", "mobilenet_v2": "MobileNetV2"}
NESTED = {"resnet20": "cifar10-resnet20-nested.json"}
"""The record of the training for all sizes that each network of ours is compared with."""
Record = Mapping[str, Any]


@dataclass(frozen=True)
class PretrainedRecords:
    """What is known about pretrained networks; without records there are no tables."""

    imagenet: Sequence[Record] = ()
    cifar10: Sequence[Record] = ()
    nested: Mapping[str, Record] | None = None
    """For networks of `cifar10`, the record of a training for all sizes."""
    sentences: Sequence[Record] = ()


def read_records(folder: Path) -> list[Record]:
    """The records in `folder`; none if there is no such folder."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]


def read_pretrained(folder: Path) -> PretrainedRecords:
    """The records of `lab.fit_*` in `folder`, and of the trainings beside them."""
    return PretrainedRecords(
        read_records(folder / "imagenet"),
        read_records(folder / "cifar10-fit"),
        {network: json.loads((folder / file).read_text()) for network, file in NESTED.items()},
        read_records(folder / "sentences-fit"),
    )


def pretrained_tables(records: PretrainedRecords) -> str:
    """One table for each network."""
    nested = records.nested or {}
    parts = [*map(_imagenet, records.imagenet)]
    parts += [_cifar10(record, nested.get(record["network"])) for record in records.cifar10]
    return "\n\n".join((*parts, *map(_sentences, records.sentences)))


def _imagenet(record: Record) -> str:
    # Until there is a fit, the record has the rows without one.
    sentences = [f"Top-1, {record['tested_on']}", *_fit(record), *record.get("remarks", [])]
    rows = [[name, *map(_accuracy, figures)] for name, figures in record["top1"].items()]
    for name, sizes in record.get("bytes_read", {}).items():
        rows.append([f"MB read, {name}", *(f"{size / 1e6:.1f}" for size in sizes)])
    title = f"Pretrained, ImageNet, {TITLES[record['network']]}"
    return titled(title, _prose(sentences), _header(record), rows)


def _fit(record: Record) -> Iterator[str]:
    if "fit" in record:
        yield (
            f"Fitted in {_took(record)} to {record['fitted_to']} images without labels, one network and one file for "
            "all columns"
        )
        yield record["fit"]["advice"]


def _cifar10(record: Record, nested: Record | None) -> str:
    sentences = [
        f"Top-1, {record['tested_on']}",
        "Fitted to training images without labels and without augmentation",
        f"Statistics of all rows but the first are from {record['statistics_from']} of them",
        "Those of fitted networks are estimated in pairs",
        *(f"{name[:1].upper()}{name[1:]}: {_took(fit)}" for name, fit in record["fits"].items()),
        *record.get("remarks", []),
    ]
    rows = [[name, *map(_accuracy, figures)] for name, figures in record["top1"].items()]
    if nested is not None:
        epochs = nested["training"]["recipe"]["run"]["epochs"]
        sentences.append(
            f"The last row is the network that comes with pof, trained for {epochs} epochs on all training images, "
            "augmented, from the same start; blank where it was not tested"
        )
        known = {
            _state(row): row["accuracy"] if row["calibrated"] is None else row["calibrated"] for row in nested["rows"]
        }
        found = [known.get(state) for state in record["states"]]
        rows.append(["`nested` training", *(_accuracy(None if each is None else 100 * each) for each in found)])
    title = f"Pretrained, CIFAR-10, {TITLES[record['network']]}"
    return titled(title, _prose(sentences), _header(record), rows)


def _sentences(record: Record) -> str:
    sentences = [
        f"Cosine between an embedding and that of the network as it came, {record['tested_on']}: the mean, and in "
        "brackets the 5th percentile",
        f"All are different sentences of {record['sentences_from']}",
        f"{record['pruned_weights'] / 1e6:.1f} of {record['all_weights'] / 1e6:.1f} M weights take part",
        "The others are the embeddings of words, biases and norms",
        f"Weights: {record['weights']}",
        *([f"Fitted in {_took(record)} to {record['fitted_to']} other sentences"] if "fit" in record else []),
        *([record["fit"]["advice"]] if "fit" in record else []),
        *record.get("remarks", []),
    ]
    rows = [[name, *(f"{mean:.3f} ({low:.3f})" for mean, low in figures)] for name, figures in record["cosine"].items()]
    return titled(f"Pretrained, sentences, {record['network']}", _prose(sentences), _header(record), rows)


def _took(record: Record) -> str:
    """How long a fit took, and its two longest stages."""
    stages = record["fit"]["stages"]
    parts = [s for s in stages if s["name"] in ("least squares", "training")]
    took = ", ".join(f"{stage['name']} {stage['seconds'] / 60:.1f} min" for stage in parts)
    return f"{sum(stage['seconds'] for stage in stages) / 60:.0f} minutes ({took})"


def _prose(sentences: Sequence[str]) -> str:
    return " ".join(f"{sentence[:1].upper()}{sentence[1:].rstrip('.')}." for sentence in sentences if sentence)


def _header(record: Record) -> list[str]:
    return ["", *(state.removeprefix("pruned at ").replace("recovered ", "filled ") for state in record["states"])]


def _state(row: Record) -> str:
    """The state of a row, as records of fits call it."""
    return str(State(row["sparsity"], row["recover_from"]))


def _accuracy(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
