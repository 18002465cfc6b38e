"""The training methods, one file each; `METHODS` finds one by its name."""

from typing import Any

from pof.methods.cram import Cram
from pof.methods.cyclical import Cyclical
from pof.methods.dense import Dense
from pof.methods.dpf import Dpf
from pof.methods.dsr import Dsr
from pof.methods.gradual import Gradual
from pof.methods.nested import Nested
from pof.methods.one_shot import OneShot
from pof.methods.pof import Pof
from pof.methods.protocol import Method, RunPass, Span

METHODS: dict[str, Any] = {
    "dense": Dense,
    "pof": Pof,
    "one_shot": OneShot,
    "gradual": Gradual,
    "cyclical": Cyclical,
    "dpf": Dpf,
    "dsr": Dsr,
    "cram": Cram,
    "nested": Nested,
}

__all__ = ["METHODS", "Method", "RunPass", "Span"]
