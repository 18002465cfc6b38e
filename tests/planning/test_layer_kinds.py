"""One table of layer kinds: a new kind is one entry, and plan, ranking, file and runtime all follow it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.planning import layer_kinds
from pof.planning.layer_kinds import LAYER_KINDS, SPARSE_OPERATIONS, LayerKind, kind_of
from pof.ranking.row_layout import RowLayout
from pof.runtime.fusion import aten


class Bilinear(nn.Module):
    """A layer that no table knows: its output units lie in dimension 1."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(8, 6))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.matrix


def test_a_new_kind_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 8), Bilinear())
    with pytest.warns(UserWarning, match=r"1.matrix is not pruned: Bilinear is not a layer that pof prunes"):
        assert [entry.name for entry in pof.plan(model)] == ["0.weight"]
    own = LayerKind(
        "bilinear",
        lambda m: isinstance(m, Bilinear),
        weights=("matrix",),
        layout=lambda module, weight: RowLayout(groups=1),
    )
    monkeypatch.setattr(layer_kinds, "LAYER_KINDS", (*LAYER_KINDS, own))
    plan = pof.plan(model)
    assert [entry.name for entry in plan] == ["0.weight", "1.matrix"]
    assert plan.entries[1].layout.groups == 1
    elastic = pof.Elastic(model, magnitudes="unit")
    norms = model[1].matrix.detach().norm(dim=0)
    elastic.prune(0.5)
    assert int((model[1].matrix == 0).sum()) == 24
    torch.testing.assert_close(model[1].matrix.detach().norm(dim=0), norms)
    pruned = model[1].matrix.detach().clone()
    elastic.restore()
    pof.save(model, tmp_path / "model.pof", magnitudes="unit")
    pof.load(tmp_path / "model.pof", into=model, sparsity=0.5)
    torch.testing.assert_close(model[1].matrix.detach(), pruned)


@pytest.mark.parametrize(
    ("layer", "kind", "names"),
    [
        (nn.Conv1d(2, 3, 3), "convolution", ("weight",)),
        (nn.Conv3d(2, 3, 3), "convolution", ("weight",)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), "transposed convolution", ("weight",)),
        (nn.Linear(3, 4), "linear", ("weight",)),
        (nn.MultiheadAttention(4, 2), "attention", ("in_proj_weight",)),
        (nn.MultiheadAttention(4, 2, kdim=3), "attention", ("q_proj_weight", "k_proj_weight", "v_proj_weight")),
    ],
)
def test_kinds_of_torch(layer: nn.Module, kind: str, names: tuple[str, ...]) -> None:
    found = kind_of(layer)
    assert found is not None
    assert found.name == kind
    assert found.weight_names(layer) == names


def test_other_modules_are_of_no_kind() -> None:
    for module in (nn.BatchNorm2d(3), nn.Embedding(3, 4), nn.LSTM(3, 4), nn.Sequential()):
        assert kind_of(module) is None


def test_operations_that_the_runtime_makes_sparse_are_torchs_own() -> None:
    convolutions = [form for op in (aten.conv1d, aten.conv2d, aten.conv3d) for form in (op.default, op.padding)]
    products = [aten.linear.default, aten.addmm.default, aten.mm.default, aten.matmul.default]
    assert set(SPARSE_OPERATIONS) == {str(op) for op in (*convolutions, *products)}
    assert set(SPARSE_OPERATIONS.values()) == {"conv", "linear", "product"}
