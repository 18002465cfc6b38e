"""Plots of accuracy over sparsity. matplotlib is an extra: it is imported when a plot is drawn."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pof.errors import PofError

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


def check_plot_path(path: str | Path) -> Path:
    """Refuse a path that a plot cannot be written to, before any work is done for it."""
    target = Path(path)
    if target.suffix not in SUFFIXES:
        raise PofError(f"cannot draw to {str(path)!r}: its name must end in {', '.join(SUFFIXES)}")
    if target.is_dir() or not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise PofError(f"cannot write {str(path)!r}: name a file in a folder that exists and can be written to")
    return target


def plot_accuracy(curves: Mapping[str, Curve], title: str, path: str | Path) -> Path:
    """Draw accuracy over sparsity to `path` (PNG, SVG or PDF by its ending)."""
    target = check_plot_path(path)
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
    try:
        figure.savefig(target, dpi=150)
    except OSError as error:
        raise PofError(f"cannot write {str(target)!r}: {error.strerror or error}") from None
    return target
