"""Plain text tables for the terminal and for `print`."""

from collections.abc import Iterable, Sequence


def text_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, right: bool = False) -> str:
    """Align columns under their header, without borders; numbers (with `right`, all cells) go to the right."""
    body = [list(row) for row in rows]
    numeric = [right or (bool(body) and all(isinstance(r[i], (int, float)) for r in body)) for i in range(len(header))]
    cells = [list(header), *([_cell(value) for value in row] for row in body)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    lines = (
        "  ".join(
            cell.rjust(width) if is_numeric else cell.ljust(width)
            for cell, width, is_numeric in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    )
    return "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
