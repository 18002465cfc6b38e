"""Networks to show on a page, and the page as a test sees it."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

import pof
from pof.core.library import core
from pof.report.network_facts import described, times_of
from pof.report.page import write_page

ROWS: list[dict[str, Any]] = [
    {"sparsity": s, "recover_from": r, "zeros": r, "accuracy": 0.9 - s / 2, "calibrated": 0.9 - s / 4 if s else None}
    for s, r in ((0.0, 0.0), (0.5, 0.5), (0.9, 0.9), (0.9, 0.5))
]


def network(kind: str = "plain") -> nn.Module:
    """Like a plain one; one that the penalty has trained (few weights are large); one that was pruned by itself."""
    torch.manual_seed(0)
    model = pof.models.digits_convnet().eval()
    if kind == "pof":
        for weight in pof.plan(model).parameters(model).values():
            weight.data.mul_(torch.where(torch.rand_like(weight) < 0.7, 0.01, 1.0))
    elif kind == "pruned":
        elastic = pof.Elastic(model)
        elastic.prune(0.6)
        elastic.refresh()
    return model


def facts(name: str = "digits", magnitudes: Any = "raw", kind: str = "plain", speed: bool = True) -> dict[str, Any]:
    """What a page shows of a network."""
    model = network(kind)
    times = times_of(model, torch.randn(1, 1, 8, 8), magnitudes) if speed and core() is not None else None
    return {"name": name, "rows": ROWS, **described(model, magnitudes), "times": times}


class Page:
    """A page in the browser."""

    def __init__(self, browser: Any, path: Path, runs: list[dict[str, Any]]) -> None:
        self.browser = browser
        browser.get(Path(write_page(path, "Some networks", "A test.", runs)).as_uri())

    def run(self, script: str) -> Any:
        return self.browser.execute_script(script)

    def text(self, name: str) -> str:
        return str(self.run(f"return document.getElementById('{name}').textContent")).replace("\u00a0", " ")

    def number(self, name: str) -> int:
        """The count that is shown in brackets."""
        return int(self.text(name).split("(")[1].rstrip(")").replace(",", ""))

    def header(self, table: str) -> list[list[str]]:
        return self.cells(f"#{table} thead tr")

    def cells(self, rows: str) -> list[list[str]]:
        """The texts of the rows of tables that a selector finds."""
        texts = "(row) => [...row.cells].map((cell) => cell.textContent)"
        found: list[list[str]] = self.run(f"return [...document.querySelectorAll('{rows}')].map({texts})")
        return found

    def move(self, name: str, value: int, event: str = "input") -> None:
        """Move a slider, or choose, as a hand does: it is given the value, and tells."""
        self.run(
            f"const s = document.getElementById('{name}'); s.value = {value}; "
            f"s.dispatchEvent(new Event('{event}', {{bubbles: true}}))"
        )

    def areas(self) -> dict[str, float]:
        """The share of the histogram that has each colour."""
        bars = self.run(
            "return [...document.querySelectorAll('#histogram rect')]"
            ".map((bar) => [bar.getAttribute('fill'), +bar.getAttribute('height')])"
        )
        total = sum(height for _, height in bars)
        names = {"zeros": "var(--zero)", "filled": "var(--filled)", "kept": "var(--kept)"}
        return {name: sum(h for color, h in bars if color == own) / total for name, own in names.items()}
