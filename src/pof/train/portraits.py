"""The facts of a run or of a file of weights, for the report page."""

from pathlib import Path
from typing import cast

import torch

from pof.portrait import Facts, described, times_of
from pof.states import Magnitudes, Scope
from pof.train.build import weights_facts
from pof.train.origin import RECORDS
from pof.train.records import Records
from pof.train.trained import load_at, recipe_of
from pof.train.weights import facts_of
from pof.urls import is_remote, local


def portrait_of(source: str | Path, *, model: str | None = None, speed: bool = True) -> Facts:
    """The facts of a run's folder or a file of weights, for `pof.report.page`."""
    found = load_at(source, model)
    path = Path(str(local(source)).partition("?")[0])
    is_run = not is_remote(source) and path.is_dir()
    records = Records(path / RECORDS) if is_run else None
    recipe = recipe_of(path) if is_run else None
    facts = facts_of(source) if recipe is None else weights_facts(recipe)
    final = records.last("final") if records is not None else None
    magnitudes = cast(Magnitudes, facts.get("magnitudes", "raw"))
    scope = cast(Scope, facts.get("scope", "layer"))
    example = torch.randn(1, found.channels, found.size, found.size)
    return {
        "name": path.stem if recipe is None else f"{path.name}{' (held-out images)' if recipe.data.hold_out else ''}",
        "rows": [] if final is None else final["table"],
        **described(found.model, magnitudes, source if path.suffix == ".pof" else None, scope),
        "times": times_of(found.model, example, magnitudes, scope=scope) if speed else None,
    }
