"""Modules that compute with the weights of their parts."""

import warnings
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.planning.borrowed_weights import borrowed_weights


def standardised(weight: Tensor) -> Tensor:
    rows = weight.flatten(1)
    return ((rows - rows.mean(1, keepdim=True)) / (rows.std(1, keepdim=True) + 1e-5)).view_as(weight)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)


class Standardises(Holder):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, standardised(self.conv.weight), self.conv.bias, padding=1)


class Centres(Holder):
    def forward(this, x: Tensor) -> Tensor:  # noqa: N805
        return this.centred(x)

    def centred(self, x: Tensor) -> Tensor:
        weight = self.conv.weight.float()
        return F.conv2d(x, weight=weight - weight.mean(), padding=1)


class Scales(Holder):
    def forward(self, x: Tensor, gain: Tensor | None = None) -> Tensor:
        weight = self.conv.weight / self.conv.weight.norm()
        return F.conv2d(x, weight if gain is None else weight * gain, self.conv.bias, padding=1)


class Asks(Holder):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x.to(self.conv.weight.dtype))
        return found


class Measures(Holder):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x) + self.conv.weight.mean()
        return found


class Decides(Holder):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x if x.sum() > 0 else -x, standardised(self.conv.weight), padding=1)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Standardises, {"1.conv.weight": False}),
        (Centres, {"1.conv.weight": False}),
        (Scales, {"1.conv.weight": True}),
        (Asks, {}),
        (Measures, {"1.conv.weight": True}),
        (Decides, {"1.conv.weight": None}),
        (Holder, {}),
    ],
)
def test_what_modules_do_with_the_weights_of_parts(kind: Any, wanted: dict[str, bool | None]) -> None:
    assert borrowed_weights(nn.Sequential(nn.Conv2d(3, 8, 3), kind())) == wanted


def test_plans_leave_out_what_is_standardised_by_a_parent() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Standardises(), nn.Conv2d(8, 8, 3))
    with pytest.warns(UserWarning, match=r"1.conv.weight is not pruned: Standardises computes with other weights"):
        plan = pof.plan(model)
    assert [entry.name for entry in plan] == ["2.weight"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(pof.plan(nn.Sequential(nn.Conv2d(3, 8, 3), Scales(), Asks(), Measures()))) == 3
    with pytest.warns(UserWarning, match=r"1.conv.weight: pof cannot see how this weight is used"):
        assert len(pof.plan(nn.Sequential(nn.Conv2d(3, 8, 3), Decides()))) == 1


def test_attention_of_torch_is_none_of_it() -> None:
    class Attention(nn.MultiheadAttention):
        pass

    assert borrowed_weights(nn.ModuleList([Attention(8, 2), nn.TransformerEncoderLayer(8, 2)])) == {}
