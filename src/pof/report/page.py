"""The report: one self-contained page with curves, tables and sliders, made from plain facts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pof.file.atomic_write import check_target, replacing

FOLDER = Path(__file__).parent
PARTS = (
    "page_style.html", "page_tools.html", "page_accuracy.html", "page_weights.html", "page_training.html",
    "page_start.html",
)  # fmt: skip
"""Each of these replaces the comment in `page.html` that names it."""
PLACE = "__DATA__"
ENDINGS = (".html", ".htm")


def write_page(path: str | Path, title: str, about: str, runs: Sequence[Mapping[str, Any]]) -> str | Path:
    """Write a page that shows `runs`, the facts of networks as `pof.report.network_facts` gathers them."""
    target = check_target(path, ENDINGS)
    data = json.dumps({"title": title, "about": about, "runs": list(runs)}, separators=(",", ":"), allow_nan=False)
    page = _text("page.html")
    for part in PARTS:
        page = page.replace(f"<!-- {part} -->\n", _text(part))
    # The data come last, so that they are not searched for placeholders. Escaped, a name cannot end its script.
    page = page.replace(PLACE, data.replace("<", "\\u003c"))
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target


def _text(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")
