"""Plain text tables for the terminal and for `print`."""

from collections.abc import Iterable, Sequence


def text_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns aligned under their header, numbers to the right, no borders."""
    body = [list(row) for row in rows]
    right = [bool(body) and all(isinstance(row[i], (int, float)) for row in body) for i in range(len(header))]
    cells = [list(header), *([_cell(value) for value in row] for row in body)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = (
        "  ".join(
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
