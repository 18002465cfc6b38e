"""The bench that judges whether a pruned network still answers."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

FILE = Path(__file__).parents[2] / "bench" / "output_spread.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("output_spread", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Answering(nn.Module):
    """A large constant, and so much of the input."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Tensor, ids: Tensor) -> dict[str, Tensor]:
        return {"answer": 100.0 + self.share * (x.sum(1) + ids.sum(1)), "always": torch.ones(3)}


@pytest.mark.parametrize(("share", "constant"), [(0.5, False), (1e-2, False), (1e-6, True), (0.0, True)])
def test_outputs_that_only_tremble_are_constant(bench: Any, share: float, constant: bool) -> None:
    inputs = bench.different_inputs((torch.randn(2, 8),), {"ids": torch.arange(6).view(2, 3)})
    assert len({str(args[0]) for args, _ in inputs}) == len(inputs)
    dense, pruned = (bench.spreads(Answering(each), inputs) for each in (1.0, share))
    assert bench.is_constant(dense, pruned) == constant


def test_outputs_that_shrink_as_a_whole_are_not_constant(bench: Any) -> None:
    model = nn.Linear(4, 2, bias=False)
    inputs = bench.different_inputs((torch.randn(2, 4),))
    dense = bench.spreads(model, inputs)
    with torch.no_grad():
        model.weight.mul_(1e-12)
    assert not bench.is_constant(dense, bench.spreads(model, inputs))
