"""The table of a network's accuracies over its states, as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from pof.terminal.text_table import text_table

ESTIMATED = "Own statistics: BatchNorm statistics re-estimated, nothing trained."
OF_THE_FILE = "Own statistics: BatchNorm statistics that the file keeps, as pof.load uses them."


def accuracy_table(
    rows: Sequence[Mapping[str, Any]], test_images: int, note: str = ESTIMATED, *, held_out: bool = False
) -> str:
    """Make one row per state: name, share of zeros, accuracy, and accuracy with its own statistics.

    If the rows are of several scopes, names include the scope. `held_out` says that the images are training images
    that were held out of training.

    Example:
        >>> row = {"sparsity": 0.7, "recover_from": 0.3, "zeros": 0.3, "accuracy": 0.91, "calibrated": None}
        >>> print(accuracy_table([row], 500))
        state              zeros  accuracy, %  own statistics
        recovered 0.3-0.7  30.0%  91.00        -
        Top-1 on 500 test images.
        Own statistics: BatchNorm statistics re-estimated, nothing trained.
    """
    header = ("state", "zeros", "accuracy, %", "own statistics")
    scopes = {row.get("scope", "layer") for row in rows}
    several = len(scopes) > 1
    names = [f"{state_name(row)}, {row.get('scope', 'layer')}" if several else state_name(row) for row in rows]
    cells = [
        (name, f"{row['zeros']:.1%}", _percent(row["accuracy"]), _percent(row["calibrated"]))
        for name, row in zip(names, rows, strict=True)
    ]
    images = f"{test_images} training images, held out" if held_out else f"{test_images} test images"
    ranked = "\nAll layers are ranked together." if scopes == {"global"} else ""
    return f"{text_table(header, cells)}\nTop-1 on {images}.\n{note}{ranked}"


def state_name(row: Mapping[str, Any]) -> str:
    """Return the name of a row's state."""
    high, low = row["sparsity"], row["recover_from"]
    if high == low:
        return f"pruned at {high:g}" if high else "as it is"
    return f"recovered {low:g}-{high:g}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.2f}"
