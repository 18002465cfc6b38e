"""Modules that compute with the weights of their parts."""

import warnings
from typing import Any

import pytest
import torch
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


class Inherits(Standardises):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Aliases(Holder):
    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        return F.conv2d(x, standardised(conv.weight), padding=1)


class HasAProperty(Holder):
    @property
    def centred(self) -> Tensor:
        return self.conv.weight - self.conv.weight.mean()

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.centred, padding=1)


class Loops(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1)])

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.conv:
            x = F.conv2d(x, standardised(conv.weight), padding=1)  # type: ignore[arg-type]
        return torch.stack([F.conv2d(x, standardised(conv.weight), padding=1) for conv in self.conv])  # type: ignore[arg-type]


class LoopsUnseen(Loops):
    """It cannot be traced, and names none of the parts whose weights it changes."""

    def forward(self, x: Tensor) -> Tensor:
        found = super().forward(x)
        return found if found.sum() > 0 else -found


class WritesInPlace(Holder):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight.clone()
        weight.sub_(weight.mean())
        return F.conv2d(x, weight, padding=1)


class Joins(Holder):
    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        return F.conv2d(x, torch.cat([weight[:4], standardised(weight)[4:]]), padding=1)


class Divides(Holder):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, torch.div(input=self.conv.weight, other=2.0).flip(2), padding=1)


class IsScaledByIt(Holder):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.conv(x) / self.conv.weight.norm()
        return found @ found.transpose(2, 3)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (Standardises, [False]),
        (Centres, [False]),
        (Inherits, [False]),
        (Aliases, [False]),
        (HasAProperty, [False]),
        (Loops, [False]),
        (LoopsUnseen, [None]),
        (WritesInPlace, [False]),
        (Joins, [False]),
        (Scales, [True]),
        (Divides, [True]),
        (IsScaledByIt, [True]),
        (Asks, []),
        (Measures, [True]),
        (Decides, [None]),
        (Holder, []),
    ],
)
def test_what_modules_do_with_the_weights_of_parts(kind: Any, wanted: list[bool | None]) -> None:
    found = borrowed_weights(nn.Sequential(nn.Conv2d(3, 8, 3), kind()))
    assert [each.keeps_zeros for each in found.values()] == wanted


def test_tied_weights_are_left_out_under_all_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            weight = self.two.weight
            found: Tensor = self.head(F.linear(self.one(x), weight - weight.mean()))
            return found

    with pytest.warns(UserWarning, match=r"one.weight and 1 more are not pruned: Tied computes with other weights"):
        plan = pof.plan(Tied())
    assert [entry.name for entry in plan] == ["head.weight"]


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
