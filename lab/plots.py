"""Plots over sparsity: accuracies, and what a file and its speed do meanwhile.

matplotlib is an extra: it is imported when a plot is drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pof.errors import PofError
from pof.file.atomic_write import check_target, replacing
from pof.file.locations import suffix_of

SUFFIXES = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Curve:
    """One line of the plot: points (sparsity, accuracy), both as shares of 1."""

    points: Sequence[tuple[float, float]]
    color: str
    dashed: bool = False
    marker: str = "o"


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


@dataclass(frozen=True)
class Histogram:
    """Counts of values from -widest to widest."""

    title: str
    widest: float
    pruned: Sequence[int]
    """What pruning takes, without what is zero."""
    kept: Sequence[int]
    zeros: int


@dataclass(frozen=True)
class BarPanel:
    """A panel of bars below a plot: (sparsity, height, what is written above it)."""

    title: str
    bars: Sequence[tuple[float, float, str]]


def plot_accuracy(curves: Mapping[str, Curve], title: str, path: str | Path) -> str | Path:
    """Draw accuracy over sparsity to `path` (PNG, SVG or PDF by its ending)."""
    return plot_panels({title: curves}, path)


def plot_panels(panels: Mapping[str, Mapping[str, Curve]], path: str | Path, lowest: float | None = None) -> str | Path:
    """As `plot_accuracy`, several plots side by side, by title; many curves have their legend below.

    With `lowest` no axis begins below it, and curves that fall further leave the plot.
    """
    target = check_target(path, SUFFIXES)
    if not can_plot():
        raise PofError("plots need matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    many = len(panels) > 1
    figure = Figure(figsize=(6 * len(panels), 7) if many else (7, 4.2), layout="constrained")
    for axes, (title, curves) in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True):
        for label, curve in curves.items():
            x, y = zip(*((100 * sparsity, 100 * accuracy) for sparsity, accuracy in curve.points), strict=True)
            style = "--" if curve.dashed else "-"
            axes.plot(x, y, label=label, color=curve.color, linestyle=style, marker=curve.marker, markersize=4)
        axes.set_xlabel("sparsity, %")
        axes.set_ylabel("test accuracy, %")
        values = [y for curve in curves.values() for _, y in curve.points]
        if lowest is not None and min(values, default=1.0) < lowest:
            axes.set_ylim(100 * lowest, 100 * max(values) + 2)
        axes.set_title(title, loc="left", fontsize=11)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if many:
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=8)
        else:
            axes.legend(loc="lower left", frameon=False)
    with replacing(target) as temporary:
        figure.savefig(temporary, dpi=150, format=suffix_of(target)[1:])
    return target


def plot_sizes(title: str, curves: Mapping[str, Curve], below: Sequence[BarPanel], path: str | Path) -> str | Path:
    """Draw accuracy over sparsity, and panels of bars below it, over the same axis."""
    target = check_target(path, SUFFIXES)
    if not can_plot():
        raise PofError("plots need matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(8, 6.6), layout=ConstrainedLayoutEngine(hspace=0.08))
    figure.suptitle(title, fontsize=16, x=0.01, ha="left")
    rows = figure.subplots(1 + len(below), 1, sharex=True, height_ratios=[2.6, *(1 for _ in below)])
    for axes in rows:
        axes.tick_params(labelsize=13, length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_xlim(-5, 95)
    for number, (label, curve) in enumerate(curves.items()):
        x, y = zip(*((100 * sparsity, 100 * accuracy) for sparsity, accuracy in curve.points), strict=True)
        look = {"color": curve.color, "linewidth": 2.5, "marker": curve.marker, "markersize": 6, "zorder": 9 - number}
        rows[0].plot(x, y, label=label, **look)
        beside = {"xytext": (7, 0), "textcoords": "offset points", "va": "center", "fontsize": 13}
        rows[0].annotate(f"{y[-1]:.1f} %", (x[-1], y[-1]), color=curve.color, **beside)
    rows[0].set_title("test accuracy, %", loc="left", fontsize=13, color="0.3")
    rows[0].locator_params(axis="y", nbins=5)
    rows[0].grid(axis="y", alpha=0.3)
    rows[0].legend(loc="lower left", frameon=False, fontsize=13)
    for axes, panel in zip(rows[1:], below, strict=True):
        _draw_bars(axes, panel, next(iter(curves.values())).color)
    ticks = sorted({100 * sparsity for panel in below for sparsity, *_ in panel.bars})
    rows[-1].set_xticks(ticks, ["dense" if tick == 0 else f"{tick:g} %" for tick in ticks])
    rows[-1].set_xlabel("sparsity: how many of the weights are zero", fontsize=13)
    with replacing(target) as temporary:
        figure.savefig(temporary, dpi=150, format=suffix_of(target)[1:])
    return target


def _draw_bars(axes: Any, panel: BarPanel, color: str) -> None:
    for sparsity, height, text in panel.bars:
        axes.bar(100 * sparsity, height, width=6, color=color, alpha=0.85)
        above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "fontsize": 13}
        axes.annotate(text, (100 * sparsity, height), **above)
    axes.set_ylim(0, 1.35 * max(height for _, height, _ in panel.bars))
    axes.set_yticks([])
    axes.set_title(panel.title, loc="left", fontsize=13, color="0.3")


def plot_histograms(grid: Sequence[Sequence[Histogram]], path: str | Path) -> str | Path:
    """Draw histograms in rows and columns: red is pruned, purple kept; green if it was fine-tuned, with zeros held."""
    target = check_target(path, SUFFIXES)
    if not can_plot():
        raise PofError("plots need matplotlib: pip install matplotlib")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(grid[0]), 2.4 * len(grid)), layout="constrained")
    for axes, histogram in zip(
        figure.subplots(len(grid), len(grid[0]), squeeze=False).flat, [h for row in grid for h in row], strict=True
    ):
        bins = len(histogram.kept)
        width = 2 * histogram.widest / bins
        middles = [-histogram.widest + width * (number + 0.5) for number in range(bins)]
        axes.bar(middles, histogram.pruned, width, color="tab:red")
        color = "tab:green" if histogram.zeros else "tab:purple"
        axes.bar(middles, histogram.kept, width, bottom=histogram.pruned, color=color)
        axes.set_title(histogram.title, fontsize=10)
        axes.set_yticks([])
        axes.spines[["top", "right", "left"]].set_visible(False)
        if histogram.zeros:
            axes.margins(y=0.25)
            axes.text(0.5, 0.9, f"{histogram.zeros:,} are 0", ha="center", fontsize=8, transform=axes.transAxes)
    with replacing(target) as temporary:
        figure.savefig(temporary, dpi=110, format=suffix_of(target)[1:])
    return target
