"""The report: one page that needs nothing but itself, with curves, tables and sliders. Made from plain facts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pof.replacing import check_target, replacing

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "__DATA__"
ENDINGS = (".html", ".htm")


def write_page(path: str | Path, title: str, about: str, runs: Sequence[Mapping[str, Any]]) -> str | Path:
    """Write the page for networks whose facts are those of `pof.portrait`."""
    target = check_target(path, ENDINGS)
    data = json.dumps({"title": title, "about": about, "runs": list(runs)}, separators=(",", ":"), allow_nan=False)
    # A name cannot end the script that it is in.
    page = TEMPLATE.read_text(encoding="utf-8").replace(PLACE, data.replace("<", "\\u003c"))
    with replacing(target) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return target
