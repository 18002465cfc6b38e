"""The penalty over a training: tr, masks that are kept for some steps, resuming, what is logged, bad settings."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from penalty_by_loop import (
    PLANNED,
    added,
    cosines_by_loop,
    kept_by_loop,
    loop,
    made,
    penalty_of,
)
from torch import nn

from pof.errors import PofError
from pof.sphere.penalty import Penalty
from tests.small_models import grouped_convnet


def test_tr_falls_linearly_and_stays() -> None:
    penalty = Penalty(grouped_convnet(), tr=(0.9, 0.7), steps=1000)
    by_step = {-5: 0.9, 0: 0.9, 1: 0.8998, 250: 0.85, 500: 0.8, 1000: 0.7, 1001: 0.7, 10**9: 0.7}
    assert {step: penalty.tr(step) for step in by_step} == pytest.approx(by_step, rel=1e-12)


def test_tr_may_be_constant_or_rise() -> None:
    constant = Penalty(grouped_convnet(), tr=0.8)
    assert {constant.tr(step) for step in (0, 1, 10**6)} == {0.8}
    assert Penalty(grouped_convnet(), tr=0.8, steps=10).tr(5) == 0.8
    rising = Penalty(grouped_convnet(), tr=[0.5, 0.9], steps=4)  # type: ignore[arg-type]
    assert [rising.tr(step) for step in range(6)] == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 0.9])


def test_the_masks_follow_tr() -> None:
    layer = made("conv2d")
    penalty = Penalty(layer, tr=(0.9, 0.5), steps=4, weight=1.0, include="weight")
    expected = [float(loop(layer, tr)[0]) for tr in (0.9, 0.8, 0.7, 0.6, 0.5, 0.5)]
    assert [penalty(step).item() for step in range(6)] == pytest.approx(expected, rel=1e-6)
    assert len(set(expected)) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tr": 70}, "tr=70 must be in [0, 1): pass 0.7 for 70 %"),
        ({"tr": -0.1}, "tr=-0.1 must be in"),
        ({"tr": 1.0}, "tr=1.0 must be in"),
        ({"tr": 0.0}, "tr=0.0 must be in (0, 1)"),
        ({"tr": (0.9, 0)}, "tr=(0.9, 0) must be in (0, 1)"),
        ({"tr": math.nan}, "tr=nan must be in"),
        ({"tr": "0.7"}, "tr='0.7' must be a number"),
        ({"tr": None}, "tr=None must be a number"),
        ({"tr": True}, "tr=True must be a number"),
        ({"tr": (0.9, 70), "steps": 5}, "tr=70 must be in"),
        ({"tr": (0.9,)}, "tr=(0.9,) must be one number or a pair"),
        ({"tr": (0.9, 0.8, 0.7)}, "tr=(0.9, 0.8, 0.7) must be one number or a pair"),
        ({"tr": (0.9, 0.7)}, "steps=None must be the number of optimiser steps"),
        ({"steps": 0}, "steps=0 must be the number of optimiser steps"),
        ({"steps": -3}, "steps=-3 must be the number of optimiser steps"),
        ({"steps": 2.5}, "steps=2.5 must be the number of optimiser steps"),
        ({"steps": True}, "steps=True must be the number of optimiser steps"),
        ({"steps": "10"}, "steps='10' must be the number of optimiser steps"),
        ({"weight": -1}, "weight=-1 must be"),
        ({"weight": math.nan}, "weight=nan must be"),
        ({"weight": math.inf}, "weight=inf must be"),
        ({"weight": "0.1"}, "weight='0.1' must be"),
        ({"weight": None}, "weight=None must be"),
        ({"refresh": 0}, "refresh=0 must be a number of steps: a whole number"),
        ({"refresh": -1}, "refresh=-1 must be"),
        ({"refresh": 1.5}, "refresh=1.5 must be"),
        ({"refresh": True}, "refresh=True must be"),
        ({"include": "no_such_layer"}, "include='no_such_layer' matches no weight"),
    ],
    ids=str,
)
def test_bad_settings_get_one_clear_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError) as caught:
        Penalty(grouped_convnet(), **{"tr": 0.7, **options})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_no_weight_is_no_penalty() -> None:
    model = grouped_convnet()
    penalty = Penalty(model, tr=0.7, weight=0)
    value = penalty(0)
    value.backward()
    assert value.item() == 0.0
    assert not model[5].weight.grad.any()


def test_refresh_keeps_the_masks_that_many_steps() -> None:
    layer = made("conv2d")
    penalty = Penalty(layer, tr=(0.9, 0.5), steps=8, weight=1.0, refresh=3, include="weight")
    kept: set[int] = set()
    differs = False
    for step in range(8):
        tr = 0.9 - 0.05 * step
        fresh = kept_by_loop(layer, tr)
        if step % 3 == 0:
            kept = fresh
        differs |= kept != fresh
        value, slope = loop(layer, tr, kept)
        # Asking twice in a step, and in either form, is the same mask.
        for _ in range(2):
            torch.testing.assert_close(penalty(step).detach().double(), value, rtol=1e-6, atol=1e-12)
            torch.testing.assert_close(added(penalty, layer.weight, step), slope, rtol=1e-6, atol=1e-12)
        with torch.no_grad():
            layer.weight.add_(0.1 * torch.randn_like(layer.weight))
    assert differs, "the test must tell old masks from new ones"


def test_going_back_in_time_finds_the_masks_anew() -> None:
    layer = made("conv2d")
    penalty = penalty_of(layer, refresh=100)
    penalty(50)
    with torch.no_grad():
        layer.weight.copy_(torch.randn_like(layer.weight))
    torch.testing.assert_close(penalty(49).detach().double(), loop(layer, 0.7)[0], rtol=1e-6, atol=1e-12)


def train(model: nn.Module, penalty: Penalty, steps: range) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in steps:
        optimizer.zero_grad()
        penalty(step).backward()
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad += 0.1 * torch.randn(parameter.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("refresh", [1, 4])
def test_resuming_is_bit_equal(refresh: int) -> None:
    options: dict[str, Any] = {"tr": (0.9, 0.7), "steps": 12, "weight": 0.5, "refresh": refresh}
    model = grouped_convnet()
    penalty = Penalty(model, **options)
    train(model, penalty, range(6))
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "penalty": penalty.state_dict()}, buffer)
    train(model, penalty, range(6, 12))

    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    ends = {}
    for with_state in (True, False):
        resumed = grouped_convnet()
        resumed.load_state_dict(saved["model"])
        again = Penalty(resumed, **options)
        if with_state:
            again.load_state_dict(saved["penalty"])
        train(resumed, again, range(6, 12))
        ends[with_state] = resumed.state_dict()
    expected = model.state_dict()
    assert all(torch.equal(ends[True][key], expected[key]) for key in expected)
    same_without = all(torch.equal(ends[False][key], expected[key]) for key in expected)
    assert same_without == (refresh == 1), "with refresh=1 nothing is needed, otherwise the masks are"


def test_a_saved_state_is_a_copy() -> None:
    model = grouped_convnet()
    penalty = Penalty(model, tr=0.7, refresh=2)
    train(model, penalty, range(1))
    state = penalty.state_dict()
    before = copy.deepcopy(state)
    train(model, penalty, range(1, 6))
    assert state["found_at"] == before["found_at"] == 0
    assert list(state["kept"]) == PLANNED
    assert all(torch.equal(mask, before["kept"][name]) for name, mask in state["kept"].items())


def test_a_state_of_another_plan_is_refused() -> None:
    theirs = Penalty(grouped_convnet(), tr=0.7, refresh=2)
    theirs(0)
    ours = Penalty(grouped_convnet(), tr=0.7, refresh=2, exclude="5")
    with pytest.raises(PofError, match=r"5\.weight"):
        ours.load_state_dict(theirs.state_dict())


def test_what_is_logged() -> None:
    model = grouped_convnet(torch.float64)
    penalty = Penalty(model, tr=0.9, weight=0.3)
    assert penalty.layers() == {}
    assert math.isnan(penalty.mean_cosine)
    modules = dict(zip(PLANNED, (model[1], model[2], model[3], model[5]), strict=True))
    expected = {}
    for name, layer in modules.items():
        found = [float(cos) for cos in cosines_by_loop(layer, layer.weight.detach(), kept_by_loop(layer, 0.9))]
        mean = sum(found) / len(found)
        expected[name] = {"mean_cosine": mean, "term_per_row": float(loop(layer, 0.9)[0]) / len(found)}
        assert expected[name]["term_per_row"] == pytest.approx((mean - 1) ** 2)
    for call in (penalty, penalty.add_gradient):
        call(0)
        logged = penalty.layers()
        assert list(logged) == PLANNED
        for name, row in expected.items():
            assert logged[name] == pytest.approx(row, rel=1e-6)
        mean_of_means = sum(row["mean_cosine"] for row in expected.values()) / 4
        assert penalty.mean_cosine == pytest.approx(mean_of_means, rel=1e-6)


def test_what_is_logged_skips_rows_with_none_kept() -> None:
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(torch.tensor([[3.0, -4.0], [5.0, 12.0]]))
    penalty = penalty_of(layer, 0.75)
    penalty(0)
    assert penalty.layers()["weight"] == pytest.approx(
        {"mean_cosine": 12 / 13, "term_per_row": (1 / 13) ** 2}, rel=1e-5
    )
