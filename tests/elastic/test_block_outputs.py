"""Blocks are found by their weights, and compared with the teacher's."""

import copy

import pytest
import torch
from torch import nn

import pof
from pof.elastic.block_outputs import BlockOutputs, block_names


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (pof.models.resnet18(), [f"layer{stage}.{block}" for stage in (1, 2, 3, 4) for block in (0, 1)]),
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), []),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), nn.Linear(4, 4)), ["0"]),
        (nn.TransformerEncoderLayer(8, 2, 16), ["self_attn"]),
    ],
)
def test_the_smallest_modules_with_two_weights(model: nn.Module, wanted: list[str]) -> None:
    assert block_names(model, [entry.name for entry in pof.plan(model)]) == wanted


def test_the_distance_of_blocks_by_hand() -> None:
    block = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model = nn.Sequential(block, nn.Linear(2, 2))
    teacher = copy.deepcopy(model)
    blocks = BlockOutputs(model, teacher, [entry.name for entry in pof.plan(model)])
    x = torch.randn(8, 2)
    assert blocks.distance() is None
    with blocks.of_teacher(), torch.no_grad():
        teacher(x)
    with torch.no_grad():
        block[1].weight.mul_(3.0)
    with blocks.of_model():
        model(x)
        found = blocks.distance()
    assert found is not None
    theirs = teacher[0](x)
    expected = (2 * theirs).square().mean() / theirs.var()
    torch.testing.assert_close(found, expected)
    found.backward()
    assert block[0].weight.grad is not None
    assert not block._forward_hooks
    assert not teacher[0]._forward_hooks


def test_blocks_that_give_tuples_or_run_twice() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
            return self.b(self.a(x)), None

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Pair()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.pair(self.pair(x)[0])[0]
            return found

    model = Twice()
    teacher = copy.deepcopy(model)
    blocks = BlockOutputs(model, teacher, ["pair.a.weight", "pair.b.weight"])
    x = torch.randn(4, 3)
    with blocks.of_teacher():
        teacher(x)
    with blocks.of_model():
        model(x)
        assert float(blocks.distance() or 1.0) == 1.0, "equal outputs are at no distance"
        assert blocks.distance() is not None
