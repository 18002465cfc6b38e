"""Dynamic pruning with feedback: passes at the pruned weights, updates of the dense ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pof.errors import PofError
from pof.methods.dpf import Dpf

if TYPE_CHECKING:
    from conftest import MakeTiny


def test_a_pruned_weight_grows_and_comes_back(tiny: MakeTiny) -> None:
    target = torch.tensor([[9.0, 2.0, 3.0, 4.0]])
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: w - target, lr=0.5)
    method = run.method("dpf", 8, sparsity=0.5, end=0.0, freeze=0.5, every=2)
    run.train(method, 0)
    # At (0, 0, 3, 4) the gradient is (-9, -2, 0, 0), and the dense weights take all of it.
    assert run.seen[0] == [0.0, 0.0, 3.0, 4.0]
    assert run.weights == [5.5, 3.0, 3.0, 4.0]
    run.train(method, 1)
    # The same mask: 2 steps have not passed.
    assert run.seen[1] == [0.0, 0.0, 3.0, 4.0]
    assert run.weights == [10.0, 4.0, 3.0, 4.0]
    run.train(method, 2)
    # A new mask of the dense weights; of the two fours the second is kept. The gradient is (1, -2, -3, 0).
    assert run.seen[2] == [10.0, 0.0, 0.0, 4.0]
    assert run.weights == [9.5, 5.0, 4.5, 4.0]


def test_the_mask_is_frozen_in_the_last_phase(tiny: MakeTiny) -> None:
    # The pruned weights grow by 2 a step, the kept ones stay.
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: torch.where(w == 0, -4.0, 0.0), lr=0.5)
    method = run.method("dpf", 8, sparsity=0.5, end=0.0, freeze=0.25, every=1)
    run.train(method, *range(8))
    assert [[i for i in range(4) if weights[i]] for weights in run.seen] == [[2, 3], [1, 3], *[[0, 2]] * 6]
    assert run.weights == [5.0, 16.0, 5.0, 16.0]
    method.finish()
    assert run.weights == [5.0, 0.0, 5.0, 0.0], "the frozen mask, not the largest of the dense weights"


def test_the_sparsity_rises_along_the_cubic(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    run.train(run.method("dpf", 12, sparsity=0.75, end=0.4, freeze=0.6, every=2), *range(12))
    # To step 5: 0.75 * (1 - (3/5)^3) = 0.588 (5 of 8), 0.75 * (1 - (1/5)^3) = 0.744 (6 of 8), 0.75.
    assert [weights.count(0.0) for weights in run.seen] == [0, 0, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6]


def test_the_end_of_the_ramp_has_its_own_mask(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0])
    run.train(run.method("dpf", 8, sparsity=0.5, end=0.25, freeze=0.75, every=100), *range(8))
    assert [weights.count(0.0) for weights in run.seen] == [0, 0, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": -0.1}, "sparsity=-0.1 must be in"),
        ({"freeze": 0.2}, "freeze=0.2 must not come before end=0.5"),
        ({"every": 1.5}, "every=1.5 must be the steps between two masks"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        Dpf.Settings(**settings)
