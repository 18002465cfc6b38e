"""Plots of accuracy over sparsity. matplotlib is an extra: it is imported when a plot is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pof.errors import PofError
from pof.replacing import check_target, replacing
from pof.urls import suffix_of

SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Curve:
    """One line of the plot: points (sparsity, accuracy), both of 1."""

    points: Sequence[tuple[float, float]]
    color: str
    dashed: bool = False


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def plot_accuracy(curves: Mapping[str, Curve], title: str, path: str | Path) -> str | Path:
    """Draw accuracy over sparsity to `path` (PNG, SVG or PDF by its ending)."""
    target = check_target(path, SUFFIXES)
    if not can_plot():
        raise PofError("plots need matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for label, curve in curves.items():
        x, y = zip(*((100 * sparsity, 100 * accuracy) for sparsity, accuracy in curve.points), strict=True)
        axes.plot(
            x, y, label=label, color=curve.color, linestyle="--" if curve.dashed else "-", marker="o", markersize=4
        )
    axes.set_xlabel("pruning ratio, %")
    axes.set_ylabel("test accuracy, %")
    axes.set_ylim(0, 103)
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", frameon=False)
    with replacing(target) as temporary:
        figure.savefig(temporary, dpi=150, format=suffix_of(target)[1:])
    return target
