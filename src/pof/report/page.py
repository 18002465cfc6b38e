"""The report: one page that needs nothing but itself, with curves, tables and sliders. Made from plain facts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pof.errors import PofError
from pof.replacing import replacing

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "__DATA__"


def check_page_path(path: str | Path) -> Path:
    """Refuse a path that a page cannot be written to, before any work is done for it."""
    target = Path(path)
    if target.suffix not in (".html", ".htm"):
        raise PofError(f"cannot write the page to {str(path)!r}: its name must end in .html")
    if target.is_dir() or not target.parent.is_dir():
        raise PofError(f"cannot write {str(path)!r}: name a file in a folder that exists")
    return target


def write_page(path: str | Path, title: str, about: str, runs: Sequence[Mapping[str, Any]]) -> Path:
    """Write the page for networks whose facts are those of `pof.portrait`."""
    target = check_page_path(path)
    data = json.dumps({"title": title, "about": about, "runs": list(runs)}, separators=(",", ":"), allow_nan=False)
    # A name cannot end the script that it is in.
    page = TEMPLATE.read_text(encoding="utf-8").replace(PLACE, data.replace("<", "\\u003c"))
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target
