"""Every weight of some size is in the plan or in its list of what is left out, with a reason; experts are pruned."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.errors import PlanError
from pof.planning.discovery import LEAST_SHARE
from pof.ranking.row_layout import RowLayout
from tests.small_models import bits


class StackedExperts(nn.Module):
    """The experts of a mixture as transformers keeps them: (experts, out, in)."""

    def __init__(self, experts: int = 4, transposed: bool = False) -> None:
        super().__init__()
        self.is_transposed = transposed
        self.up = nn.Parameter(torch.randn(experts, *((8, 12) if transposed else (12, 8))))
        self.up_bias = nn.Parameter(torch.randn(experts, 12))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,eio->beo" if self.is_transposed else "bi,eoi->beo", x, self.up).mean(1)


class CondConv2d(nn.Module):
    """As timm's: the kernels of all experts in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.weight_shape = 3, (6, 4, 3, 3)
        self.weight = nn.Parameter(torch.randn(3, 6 * 4 * 9))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_experts_are_pruned_restored_and_saved(transposed: bool, magnitudes: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), StackedExperts(transposed=transposed))
    plan = pof.plan(model)
    assert [entry.name for entry in plan] == ["0.weight", "1.up"]
    assert plan.entries[1].layout == (RowLayout(last=True) if transposed else RowLayout(matrix=48))
    before, up = bits(model), model[1].up
    norms = up.detach().norm(dim=1 if transposed else 2)
    elastic = pof.Elastic(model, magnitudes=magnitudes)  # type: ignore[arg-type]
    elastic.prune(0.5)
    assert int((up == 0).sum()) == 192
    if magnitudes == "unit":
        torch.testing.assert_close(up.detach().norm(dim=1 if transposed else 2), norms)
    pruned = up.detach().clone()
    elastic.restore()
    assert bits(model) == before
    pof.save(model, tmp_path / "model.pof", magnitudes=magnitudes)  # type: ignore[arg-type]
    pof.load(tmp_path / "model.pof", into=model, sparsity=0.5)
    torch.testing.assert_close(up.detach(), pruned)
    pof.load(tmp_path / "model.pof", into=model)
    assert bits(model) == before


@pytest.mark.parametrize("transposed", [False, True])
def test_the_penalty_sees_an_output_unit_of_one_expert_as_a_row(transposed: bool) -> None:
    model = StackedExperts(transposed=transposed)
    penalty = pof.Penalty(model, tr=0.5, weight=1.0)
    rows = (model.up.transpose(1, 2) if transposed else model.up).reshape(48, 8).detach()
    units = rows / rows.norm(dim=1, keepdim=True)
    keys = units if not transposed else units.view(4, 12, 8).transpose(1, 2)
    cut = keys.abs().reshape(-1).sort().values[:192][-1]
    signs = torch.where(units.abs() > cut, units.sign(), 0.0)
    counts = signs.abs().sum(1)
    cosines = (units * signs).sum(1)[counts > 0] / counts[counts > 0].sqrt()
    wanted = (cosines - 1).sum() ** 2 / len(cosines)
    torch.testing.assert_close(penalty(0).detach(), wanted)
    penalty(0).backward()
    slow = model.up.grad.clone()
    model.up.grad = None
    penalty.add_gradient(0)
    torch.testing.assert_close(model.up.grad, slow)


def test_conditional_convolutions_are_pruned() -> None:
    plan = pof.plan(nn.Sequential(nn.Linear(4, 4), CondConv2d()))
    assert plan.entries[1].layout == RowLayout(matrix=18)
    assert plan.entries[1].rows(torch.empty(3, 216))[0].shape == (18, 36)


def test_nothing_of_some_size_is_in_neither_list() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(20, 30))
            self.small = nn.Parameter(torch.randn(1, 1))

    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), Odd(), StackedExperts(), nn.LSTM(8, 8))
    with pytest.warns(UserWarning, match="are not pruned") as caught:
        plan = pof.plan(model)
    assert len(caught) == 1
    told = {name for entry in plan for name in entry.names} | {name for name, _ in plan.left_out}
    total = sum(weight.numel() for weight in model.parameters())
    assert plan.total == total
    for name, weight in model.named_parameters():
        if weight.dim() >= 2 and weight.numel() > LEAST_SHARE * total:
            assert name in told, name
    reasons = dict(plan.left_out)
    assert reasons["0.weight"] == "embeddings are not pruned"
    assert reasons["2.table"] == "Odd is not a layer that pof prunes"
    assert reasons["3.up_bias"] == "biases are not pruned"
    assert "2.small" not in told
    assert str(plan).splitlines()[-1].endswith(f"{plan.weights / total:.1%} of the model's {total:,}")


@pytest.mark.parametrize(
    ("glob", "why"), [("0", "embeddings are not pruned"), ("2.table", "not a layer that pof prunes")]
)
def test_including_only_what_cannot_be_pruned_says_why(glob: str, why: str) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(20, 30))

    for include in ((glob,), ("1", glob)):
        with pytest.raises(PlanError, match=why) as caught:
            pof.plan(nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), Odd()), include=include)
        assert repr(glob) in str(caught.value)


def test_a_depthwise_convolution_is_not_the_first_one() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Conv1d(8, 8, 4, groups=8), nn.Linear(8, 8))
    assert [entry.name for entry in pof.plan(model)] == ["0.weight", "1.weight", "2.weight"]


def test_a_chain_of_tiny_layers_still_answers() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(3, 1))
    elastic = pof.Elastic(model)
    elastic.prune(0.9)
    assert [row.weights - row.zeros for row in elastic.layers()] == [6, 2, 1]
    assert elastic.layers()[0].dead_rows >= 3


def test_parts_of_a_layer_whose_weight_is_computed_are_told() -> None:
    class WithPart(nn.Linear):
        def __init__(self) -> None:
            super().__init__(16, 16)
            self.part = nn.Module()
            self.part.own = nn.Parameter(torch.randn(16, 16))

    model = nn.Sequential(nn.utils.parametrizations.weight_norm(WithPart()), nn.Linear(16, 16))
    with pytest.warns(UserWarning, match="0.weight and 1 more are not pruned"):
        found = dict(pof.plan(model).left_out)
    assert set(found) == {"0.weight", "0.part.own"}
