"""The graph of a module, traced without calling the module itself."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn


def traced_graph(module: nn.Module, constants: Mapping[str, Any] | None = None) -> fx.Graph | None:
    """The graph of `module`, or None if it cannot be traced; `constants` are inputs whose values are fixed.

    A copy is traced, since tracing may change attributes; it shares the weights, which are only read.
    """
    shared = {id(tensor): tensor for tensor in module.parameters()}
    try:
        with torch.random.fork_rng(devices=[]):
            return fx.Tracer().trace(copy.deepcopy(module, shared), dict(constants) if constants else None)
    except Exception:  # whatever a module does with what is not a tensor
        return None
