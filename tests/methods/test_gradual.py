"""Gradual pruning: along the cubic, then held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pof.errors import PofError
from pof.methods.gradual import Gradual

if TYPE_CHECKING:
    from conftest import MakeTiny

EIGHT = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]


def zeros(passes: list[list[float]]) -> list[int]:
    return [weights.count(0.0) for weights in passes]


def test_the_passes_see_the_cubic(tiny: MakeTiny) -> None:
    run = tiny(EIGHT)
    method = run.method("gradual", 10, sparsity=0.75, begin=0.1, end=0.5, every=2)
    run.train(method, *range(10))
    # Steps 1, 3, 5 of a ramp from 1 to 5: 0.75 * (1 - (4/4)^3), 0.75 * (1 - (2/4)^3) = 0.65625 (5 of 8), 0.75 (6 of 8).
    assert zeros(run.seen) == [0, 0, 0, 5, 5, 6, 6, 6, 6, 6]
    assert run.seen[3] == [0.0] * 5 + [6.0, 7.0, 8.0], "the smallest go first"
    assert method.figures() == {"sparsity": 0.75}


@pytest.mark.parametrize("every", [1, 3, 7, 1000])
@pytest.mark.parametrize("end", [0.0, 0.5, 1.0])
def test_the_target_is_reached_whatever_the_distance(tiny: MakeTiny, every: int, end: float) -> None:
    run = tiny(EIGHT)
    run.train(run.method("gradual", 10, sparsity=0.6, end=end, every=every), *range(10))
    # round(0.6 * 8) = 5; before the last pass, so that the last step trains what is left.
    assert zeros(run.seen)[-1] == run.weights.count(0.0) == 5


def test_an_initial_sparsity_comes_with_the_beginning(tiny: MakeTiny) -> None:
    run = tiny(EIGHT)
    run.train(run.method("gradual", 4, sparsity=0.75, initial=0.5, begin=0.5, end=1.0, every=1), *range(4))
    assert zeros(run.seen) == [0, 0, 4, 6]


def test_pruned_weights_stay_zero_and_lose_their_momentum(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], torch.ones_like, lr=0.125, momentum=0.5, weight_decay=0.5)
    method = run.method("gradual", 4, sparsity=0.5, begin=0.25, end=0.25)
    run.train(method, 0)
    # v = 1 + 0.5 w, then w - v / 8.
    assert run.momentum == [1.5, 2.0, 2.5, 3.0]
    assert run.weights == [0.8125, 1.75, 2.6875, 3.625]
    run.train(method, 1)
    assert run.seen[1] == [0.0, 0.0, 2.6875, 3.625]
    # v = 1 + 0.5 * 2.6875 + 0.5 * 2.5 = 3.59375;  v = 1 + 0.5 * 3.625 + 0.5 * 3 = 4.3125
    assert run.momentum == [0.0, 0.0, 3.59375, 4.3125]
    run.train(method, 2, 3)
    assert run.weights[:2] == run.momentum[:2] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 1.0}, "sparsity=1.0 must be in"),
        ({"initial": 0.9}, "initial=0.9 must not exceed sparsity=0.8"),
        ({"begin": 0.9}, "end=0.75 must not come before begin=0.9"),
        ({"every": 0}, "every=0 must be the steps between two prunings"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        Gradual.Settings(**settings)
