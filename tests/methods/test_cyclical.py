"""Cyclical pruning: nothing comes back within a cycle, everything may in the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from pof.errors import PofError
from pof.methods.cyclical import Cyclical

if TYPE_CHECKING:
    from conftest import MakeTiny


def first_grows(weights: Tensor) -> Tensor:
    return torch.tensor([[-1.0, 0.0, 0.0, 0.0]])


def test_a_weight_of_one_cycle_regrows_in_the_next(tiny: MakeTiny) -> None:
    run = tiny([0.25, 2.0, 2.5, 4.0], first_grows, lr=0.5)
    method = run.method("cyclical", 8, sparsity=0.5, cycles=2, ramp=0.5, every=2)
    run.train(method, *range(8))
    # The first weight grows by 0.5 a step, masked or not.
    assert run.seen == [
        [0.25, 2.0, 2.5, 4.0],
        [0.75, 2.0, 2.5, 4.0],
        [0.0, 0.0, 2.5, 4.0],  # 1.25 and 2 are the smallest
        [0.0, 0.0, 2.5, 4.0],
        [2.25, 2.0, 2.5, 4.0],  # the second cycle begins dense, with what the first one did to all weights
        [2.75, 2.0, 2.5, 4.0],
        [3.25, 0.0, 0.0, 4.0],  # now 2 and 2.5 are
        [3.75, 0.0, 0.0, 4.0],
    ]
    assert run.weights == [4.25, 0.0, 0.0, 4.0]


def test_nothing_comes_back_within_a_cycle(tiny: MakeTiny) -> None:
    run = tiny([0.25, 2.0, 2.5, 4.0], first_grows, lr=4.0)
    method = run.method("cyclical", 8, sparsity=0.5, initial=0.25, cycles=1, ramp=0.75, every=2)
    run.train(method, 0, 1)
    assert run.weights == [8.25, 2.0, 2.5, 4.0], "the largest of the dense weights, and still pruned"
    run.train(method, *range(2, 8))
    # 0.5 - 0.25 * (4/6)^3 = 0.426 (2 of 4) at step 2, then 0.5.
    assert run.seen == [[0.0, 2.0, 2.5, 4.0]] * 2 + [[0.0, 0.0, 2.5, 4.0]] * 6
    assert run.weights == [0.0, 0.0, 2.5, 4.0]


def test_the_end_of_the_last_cycle_is_held(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], torch.ones_like, lr=0.125, momentum=0.5, weight_decay=0.5)
    method = run.method("cyclical", 8, sparsity=0.5, cycles=2, ramp=0.5, every=1)
    run.train(method, *range(6))
    assert 0.0 not in run.weights
    assert 0.0 not in run.momentum
    for step in (6, 7):
        run.train(method, step)
        assert run.weights[:2] == run.momentum[:2] == [0.0, 0.0]
        assert 0.0 not in run.weights[2:]
        assert 0.0 not in run.momentum[2:]


@pytest.mark.parametrize(("steps", "cycles"), [(7, 3), (5, 5), (10, 1)])
def test_the_target_is_reached_in_every_cycle(tiny: MakeTiny, steps: int, cycles: int) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0])
    run.train(run.method("cyclical", steps, sparsity=0.75, cycles=cycles, ramp=1.0, every=100), *range(steps))
    zeros = [weights.count(0.0) for weights in run.seen]
    ends = [number * steps // cycles - 1 for number in range(1, cycles + 1)]
    assert [zeros[end] for end in ends] == [3] * cycles
    assert run.weights.count(0.0) == 3


def test_more_cycles_than_steps_are_refused(tiny: MakeTiny) -> None:
    with pytest.raises(PofError, match="cycles=4 must not exceed the 3 steps of the run"):
        tiny([1.0, 2.0]).method("cyclical", 3, cycles=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": True}, "sparsity=True must be a number"),
        ({"cycles": 0}, "cycles=0 must be the number of cycles"),
        ({"ramp": 1.5}, "ramp=1.5 must be a share of the run"),
        ({"every": -1}, "every=-1 must be the steps"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        Cyclical.Settings(**settings)
