"""Distances between outputs of any shape and kind."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import pof
from pof.elastic.output_distance import blind_distance, output_distance, output_tensors


def test_regression_and_embeddings_are_not_only_probabilities() -> None:
    """Probabilities do not change when the same number is added to all classes; other outputs do."""
    y = torch.randn(64, 2)
    assert float(output_distance(y + 5, y)) > 1
    assert float(output_distance(y, y)) == pytest.approx(0.0, abs=1e-6)
    assert float(output_distance({"logits": y + 5}, {"logits": y})) == pytest.approx(0.0, abs=1e-6)


@dataclass
class Answer:
    hidden: Tensor
    loss: None = None


def test_whatever_a_model_returns() -> None:
    a, b = torch.randn(4, 3, 5), torch.randn(4, 7)
    outputs: dict[str, Any] = {
        "tuple": (a, [b, b]),
        "dict": {"inner": {"deep": a}, "ids": torch.arange(3)},
        "dataclass": Answer(a),
    }
    for name, wanted in outputs.items():
        assert output_tensors(wanted), name
        assert float(output_distance(wanted, wanted)) == pytest.approx(0.0, abs=1e-6)
    assert list(output_tensors((a, [b, b]))) == ["0", "1.0", "1.1"]
    assert list(output_tensors({"hidden": a, "logits": b})) == ["logits"]


@pytest.mark.parametrize("nothing", [torch.arange(4), (torch.arange(4), None), {}])
def test_nothing_to_compare_is_one_line(nothing: Any) -> None:
    with pytest.raises(pof.PofError, match="without floating-point tensors"):
        output_distance(nothing, nothing)


def test_a_network_that_sees_nothing_is_as_far_off_as_the_outputs_vary() -> None:
    torch.manual_seed(0)
    outputs = torch.randn(50, 3, 4)
    mean = outputs.mean(0)
    by_loop = float(sum((row - mean).square().sum() for row in outputs) / outputs.square().sum())
    assert blind_distance([{"hidden": outputs}]) == pytest.approx(by_loop)
    assert blind_distance([torch.ones(4, 3)]) == pytest.approx(0.0, abs=1e-6)
