"""Short ways to read a plan."""

from typing import Any

from torch import nn

import pof
from pof.planning.entry import Entry


def names(plan: pof.Plan) -> list[str]:
    return [entry.name for entry in plan]


def only(model: nn.Module, **options: Any) -> Entry:
    """The one entry of the plan of `model`."""
    (entry,) = pof.plan(model, **options)
    return entry
