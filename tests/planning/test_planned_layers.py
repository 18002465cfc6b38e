"""Which layers take part, what a row of each is, and the first convolution, which does not."""

from typing import Any

import pytest
import torch
from plan_reading import names, only
from torch import Tensor, nn

import pof
from tests.small_models import Convnet

# Kinds of layers


@pytest.mark.parametrize(
    ("layer", "shape", "groups"),
    [
        (nn.Conv1d(4, 6, 3), (6, 4, 3), None),
        (nn.Conv2d(4, 6, 3, groups=2), (6, 2, 3, 3), None),
        (nn.Conv3d(4, 6, 1), (6, 4, 1, 1, 1), None),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), (4, 3, 3), 2),
        (nn.ConvTranspose2d(4, 6, 3), (4, 6, 3, 3), 1),
        (nn.ConvTranspose3d(4, 6, 1, groups=2), (4, 3, 1, 1, 1), 2),
        (nn.Linear(4, 6), (6, 4), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_every_kind_of_layer_takes_part(layer: nn.Module, shape: tuple[int, ...], groups: int | None) -> None:
    entry = only(nn.Sequential(nn.Conv2d(3, 3, 1), layer))
    assert (entry.name, entry.kind, entry.shape, entry.groups) == ("1.weight", type(layer).__name__, shape, groups)
    assert entry.weights == layer.weight.numel()


@pytest.mark.parametrize("layer", [nn.Conv1d, nn.Conv2d, nn.Conv3d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_row_of_a_convolution_is_all_that_makes_one_output_channel(layer: Any, groups: int) -> None:
    check_rows(layer(4, 6, 2, groups=groups, bias=False))


@pytest.mark.parametrize("layer", [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_row_of_a_transposed_convolution_lies_in_dimension_1_of_its_group(layer: Any, groups: int) -> None:
    check_rows(layer(4, 6, 2, groups=groups, bias=False))


def check_rows(layer: Any) -> None:
    """Emptying row j, counted over all rows in order, silences output channel j and no other."""
    entry = only(layer, include="weight")
    inputs = torch.rand(1, 4, *[3] * (layer.weight.dim() - 2))
    with torch.no_grad():
        layer.weight.abs_()
        for channel in range(6):
            weight = layer.weight.clone()
            rows, dims = entry.rows(layer.weight)
            kept = [i for i in range(rows.dim()) if i not in dims]
            index = torch.unravel_index(torch.tensor(channel), [rows.shape[i] for i in kept])
            where: list[Any] = [slice(None)] * rows.dim()
            for dim, i in zip(kept, index, strict=True):
                where[dim] = i
            rows[tuple(where)] = 0
            silent = (layer(inputs) == 0).flatten(2).all(2)[0]
            assert silent.tolist() == [j == channel for j in range(6)]
            layer.weight.copy_(weight)


class TimmConv(nn.Conv2d):
    """What other libraries do: a subclass with its own forward."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 1.0)


class ClipLinear(nn.Linear):
    pass


class ModernAttention(nn.MultiheadAttention):
    pass


def test_subclasses_of_other_libraries_are_caught() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = TimmConv(3, 4, 3)
            self.conv = TimmConv(4, 4, 3)
            self.attention = ModernAttention(4, 2)
            self.head = ClipLinear(4, 2)

    plan = pof.plan(Model())
    assert names(plan) == ["conv.weight", "attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]
    assert [entry.kind for entry in plan][::3] == ["TimmConv", "ClipLinear"]
    assert plan.left_out == (("stem.weight", "the first convolution"),)


def test_the_projections_of_attention_take_part() -> None:
    joint, separate = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    assert names(pof.plan(joint)) == ["in_proj_weight", "out_proj.weight"]
    plan = pof.plan(separate)
    assert names(plan) == ["q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"]
    assert [entry.shape for entry in plan] == [(8, 8), (8, 6), (8, 4), (8, 8)]


def test_a_transformer_takes_part_with_every_matrix() -> None:
    model = nn.Transformer(8, 2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=16, batch_first=True)
    matrices = {name for name, parameter in model.named_parameters() if parameter.dim() == 2}
    assert len(matrices) == 10
    assert set(names(pof.plan(model))) == matrices


def test_layers_that_are_neither_take_no_part() -> None:
    model = nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4), nn.LSTM(4, 4), nn.Bilinear(4, 4, 4), nn.Linear(4, 4))
    with pytest.warns(UserWarning, match=r"^2\.weight_ih_l0 and 2 more are not pruned: recurrent") as caught:
        plan = pof.plan(model)
    assert len(caught) == 1, "one per model is enough"
    assert names(plan) == ["4.weight"]
    assert dict(plan.left_out) == {
        "0.weight": "embeddings are not pruned",
        "2.weight_ih_l0": "recurrent layers are not pruned",
        "2.weight_hh_l0": "recurrent layers are not pruned",
        "3.weight": "Bilinear is not a layer that pof prunes",
    }


def test_a_single_layer_is_a_model_too() -> None:
    assert names(pof.plan(nn.Linear(4, 2))) == ["weight"]


# The first convolution


def test_the_first_convolution_in_the_order_of_named_modules_is_left_out() -> None:
    plan = pof.plan(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Conv1d(4, 4, 1)), nn.Conv2d(4, 4, 1)))
    assert names(plan) == ["0.weight", "2.weight"]
    assert plan.left_out == (("1.0.weight", "the first convolution"),)


def test_a_first_transposed_convolution_is_the_first_convolution() -> None:
    assert names(pof.plan(nn.Sequential(nn.ConvTranspose2d(4, 4, 1), nn.Conv2d(4, 4, 1)))) == ["1.weight"]


def test_a_model_without_convolutions_leaves_nothing_out() -> None:
    plan = pof.plan(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert names(plan) == ["0.weight", "1.weight"]
    assert plan.left_out == ()


def test_excluding_the_first_convolution_does_not_make_the_second_one_the_first() -> None:
    plan = pof.plan(Convnet(), exclude="stem")
    assert plan.left_out == (("stem.weight", "excluded"),)
    assert names(plan)[0] == "layer1.0.weight"
