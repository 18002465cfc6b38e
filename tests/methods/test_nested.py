"""Nested: the clean gradient, and that of the pruned or recovered network of the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from pof.elastic.second_pass import random_states, without_trace
from pof.errors import PofError
from pof.sphere.attachment import attach

if TYPE_CHECKING:
    from conftest import MakeTiny

TARGET = torch.tensor([[-5.0, 4.0, 5.0, 2.0]])
HALF = {"low": 0.5, "high": 0.5}


def test_a_step_by_hand(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, -4.0], lambda w: w - TARGET)
    method = run.method("nested", 1, **HALF, distill=0.25)
    method.gradients(0, run.run_pass)
    assert run.seen == [[1.0, 2.0, 3.0, -4.0], [0.0, 0.0, 3.0, -4.0]]
    assert run.distilled == [0.0, 0.25]
    # g = (6, -2, -2, -6); g' = (5, -4, -2, -6), masked (0, 0, -2, -6).
    assert run.gradient == [6.0, -2.0, -4.0, -12.0]
    assert run.weights == [1.0, 2.0, 3.0, -4.0]


def test_the_second_gradient_has_a_weight(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, -4.0], lambda w: w - TARGET)
    run.method("nested", 1, **HALF, weight=0.5).gradients(0, run.run_pass)
    # g + g' / 2, masked as in the step by hand.
    assert run.gradient == [6.0, -2.0, -3.0, -9.0]


def test_a_step_uphill_by_hand(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: w - TARGET)
    method = run.method("nested", 1, **HALF, rho=0.5)
    method.gradients(0, run.run_pass)
    # As in CrAM's own test.
    assert run.seen == [[1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 0.0, 5.0]]
    assert run.gradient == [15.0, -2.0, -2.0, 5.0]
    assert run.weights == [1.0, 2.0, 3.0, 4.0]


def test_a_recovered_pass_by_hand(tiny: MakeTiny) -> None:
    run = tiny([0.5, 2.0, -3.0, 4.0], lambda w: w - TARGET)
    method = run.method("nested", 1, low=0.25, high=0.75, skew=1e6, bands=1.0)
    method.gradients(0, run.run_pass)
    # The largest stays, the next two get their mean magnitude, the smallest is zero and has no gradient.
    assert run.seen[1] == [0.0, 2.5, -2.5, 4.0]
    # g = (5.5, -2, -8, 2); g' = (5, -1.5, -7.5, 2), masked (0, -1.5, -7.5, 2).
    assert run.gradient == [5.5, -3.5, -15.5, 4.0]
    assert run.weights == [0.5, 2.0, -3.0, 4.0]


def test_sparsities_are_drawn_by_seed_and_step_from_the_whole_range(tiny: MakeTiny) -> None:
    shares = []
    for skew in (1.0, 3.0):
        drawn = []
        for _ in range(2):
            run = tiny([float(i) for i in range(1, 101)])
            method = run.method("nested", 200, low=0.2, high=0.8, skew=skew, bands=0.0)
            for step in range(200):
                run.model.zero_grad()
                method.gradients(step, run.run_pass)
            drawn.append([weights.count(0.0) / 100 for weights in run.seen[1::2]])
        assert drawn[0] == drawn[1]
        assert 0.2 <= min(drawn[0]) < 0.3
        assert 0.75 < max(drawn[0]) <= 0.8
        shares.append(sum(drawn[0]) / 200)
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[1] == pytest.approx(0.65, abs=0.05), "high - (high - low) / (1 + skew)"


def test_a_penalty_joins_both_passes(tiny: MakeTiny) -> None:
    weights = [1.0, 2.0, 3.0, -4.0]
    alone, beside = tiny(weights), tiny(weights, lambda w: w - TARGET)
    attached = attach(alone.model, alone.optimizer, tr=0.5, weight=0.3, sphere=False)
    alone.optimizer.step()
    attached.remove()
    method = beside.method("nested", 2, **HALF, penalty=0.3)
    beside.train(method, 0)
    # The step of both passes is half of (6, -2, -4, -12): `test_a_step_by_hand`, without distillation the same.
    moved = [w - before for w, before in zip(alone.weights, weights, strict=True)]
    assert max(map(abs, moved)) > 0.001
    passes = [-2.0, 3.0, 5.0, 2.0]
    assert beside.weights == pytest.approx([w + m for w, m in zip(passes, moved, strict=True)])
    state = method.state_dict()
    assert state["step"] == 1
    method.finish()
    again = tiny(weights).method("nested", 2, **HALF, penalty=0.3)
    again.load_state_dict(state)
    assert again.state_dict()["step"] == 1


def test_a_teacher_is_the_network_as_it_was_and_takes_the_place_of_some_clean_passes(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, -4.0], lambda w: w - TARGET)
    method = run.method("nested", 6, **HALF, distill=0.25, temperature=3.0, teacher=True, clean=2 / 3, weight=0.5)
    run.train(method, 0)
    # Without a clean pass: half of g' = (5, -4, -2, -6), masked; the rate is 0.5.
    assert run.seen == [[0.0, 0.0, 3.0, -4.0]]
    assert run.weights == [1.0, 2.0, 3.5, -2.5]
    run.train(method, *range(1, 6))
    assert len(run.seen) == 6 + 4, "two of three steps have a clean pass"
    assert set(run.distilled) == {0.25}, "which learns from the teacher too"
    assert set(run.temperatures) == {3.0}
    (teacher,) = set(run.teachers)
    assert isinstance(teacher, nn.Linear)
    assert teacher.weight.tolist() == [[1.0, 2.0, 3.0, -4.0]]
    again = tiny([9.0, 9.0, 9.0, 9.0]).method("nested", 6, **HALF, teacher=True, penalty=0.3)
    again.load_state_dict({**again.state_dict(), "teacher": method.state_dict()["teacher"]})
    assert again.state_dict()["teacher"]["weight"].tolist() == [[1.0, 2.0, 3.0, -4.0]]


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_gradients_that_overflowed_are_left_to_the_scaler(tiny: MakeTiny, rho: float) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: torch.full_like(w, torch.inf))
    run.method("nested", 1, **HALF, rho=rho).gradients(0, run.run_pass)
    assert run.seen == [[1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 3.0, 4.0]]
    assert run.gradient == [torch.inf] * 4
    assert run.weights == [1.0, 2.0, 3.0, 4.0]


def test_what_a_scope_cannot_reach_is_refused_before_training(tiny: MakeTiny) -> None:
    with pytest.raises(PofError, match="0\\.995"):
        tiny([float(i) for i in range(1, 101)]).method("nested", 1, high=0.995, scope="global")


def test_the_second_pass_leaves_no_trace_in_any_buffer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.register_buffer("replaced", torch.zeros(2))
    kept, counter = model.state_dict(keep_vars=True), model.get_buffer("replaced")
    before = {name: value.detach().clone() for name, value in kept.items()}
    with without_trace(model, random_states(model)):
        model(torch.randn(8, 4))
        model.replaced = torch.ones(2)
    assert model.get_buffer("replaced") is counter
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0.9, "high": 0.5}, "low=0.9 must not exceed high=0.5"),
        ({"distill": 1.5}, "distill=1.5 must be from 0 to 1"),
        ({"temperature": 0.0}, "temperature=0.0 must be a number above 0"),
        ({"temperature": 3.0, "distill": 0.0}, "temperature=3 has no effect without distill"),
        ({"temperature": float("nan")}, "temperature=nan must be a number above 0"),
        ({"bands": -0.1}, "bands=-0.1 must be from 0 to 1"),
        ({"rho": -1.0}, "rho=-1"),
        ({"penalty": -1.0}, "penalty=-1"),
        ({"weight": -1.0}, "weight=-1"),
        ({"clean": 0.5}, "clean=0.5 needs teacher=true"),
        ({"clean": 1.5, "teacher": True}, "clean=1.5 must be from 0 to 1"),
        ({"scope": "all"}, "scope='all'"),
    ],
)
def test_wrong_settings(tiny: MakeTiny, settings: dict[str, float], message: str) -> None:
    with pytest.raises(PofError, match=message):
        tiny([1.0, 2.0]).method("nested", 1, **settings)
