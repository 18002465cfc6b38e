"""The paper's own tables, on ImageNet, to compare with ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.markdown import titled

Paper = Mapping[str, Any]


def instant_pruning(found: Paper, network: str) -> str:
    """Make one column per tr."""
    sparsities = [key for key in found if key not in ("columns", "dense")]
    rows = [["dense", *map(_number, found["dense"])]]
    rows += [[f"{100 * float(s):g} %", *map(_number, found[s])] for s in sparsities]
    return titled(f"The paper: instant pruning, ImageNet, {network}", "", ["sparsity", *found["columns"]], rows)


def instant_recovery(found: Paper, network: str) -> str:
    """Make one row per band."""
    rows = [[_band(key), *map(_number, found[key])] for key in found if key != "columns"]
    return titled(f"The paper: instant recovery, ImageNet, {network}", "", ["band", *found["columns"]], rows)


def beside_peers(found: Sequence[Paper]) -> str:
    """Compare recovered networks with those of methods that train one network per sparsity."""
    rows = [
        [
            row["method"],
            _number(row["dense"]),
            _number(row["sparse"]),
            f"{row['sparse'] - row['dense']:+.2f}",
            _band(row["sparsity"]),
        ]
        for row in found
    ]
    header = ["method", "dense", "sparse", "difference", "sparsity or band, %"]
    return titled("The paper: instant recovery beside other methods, ImageNet, ResNet-50", "", header, rows)


def fine_tuned(found: Paper, networks: Sequence[str]) -> str:
    """Make one row per network and sparsity, with the difference from the dense network."""
    rows = []
    for network in networks:
        dense = found[network]["dense"]
        for key in (key for key in found[network] if key != "dense"):
            values = zip(found[network][key], dense, strict=True)
            cells = [_number(v) if v is None or d is None else f"{v:.2f} ({v - d:+.2f})" for v, d in values]
            rows.append([f"{network}, {100 * float(key):g} %", *cells])
    about = "In brackets the difference to the dense network, computed here: the paper misprints some."
    title = f"The paper: fine-tuned, ImageNet, {' and '.join(networks)}"
    return titled(title, about, ["network, sparsity", *found["columns"]], rows)


def _number(found: float | None) -> str:
    return "" if found is None else f"{found:.2f}"


def _band(key: str) -> str:
    return "-".join(f"{100 * float(end):g}" for end in key.split("-"))
