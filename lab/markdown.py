"""Tables as Markdown."""

from collections.abc import Iterable, Sequence


def titled(title: str, about: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a heading, what the table is about, and the table."""
    lines = [f"### {title}", ""] + ([about, ""] if about else [])
    lines += [_line(header), _line(["---"] * len(header)), *map(_line, rows)]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
