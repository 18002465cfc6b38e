"""Methods with `distill` learn from the network as it was before it was pruned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from torch import nn

from pof.errors import PofError
from pof.methods import METHODS

if TYPE_CHECKING:
    from conftest import MakeTiny

PRUNED_AT_ONCE = {"one_shot": {"sparsity": 0.5}, "gradual": {"sparsity": 0.5, "end": 0.0}}


@pytest.mark.parametrize("name", PRUNED_AT_ONCE)
def test_it_learns_from_what_it_was(tiny: MakeTiny, name: str) -> None:
    weights, settings = [1.0, -2.0, 3.0, -4.0], PRUNED_AT_ONCE[name]
    run = tiny(weights, lambda w: w)
    method = run.method(name, 2, **settings, distill=0.25)
    run.train(method, 0, 1)
    assert run.weights[:2] == [0.0, 0.0]
    assert run.distilled == [0.25, 0.25]
    (teacher, again), state = run.teachers, method.state_dict()
    assert teacher is again
    assert isinstance(teacher, nn.Linear)
    assert teacher.weight.tolist() == [weights], "dense, whatever was trained"
    assert not teacher.training
    assert not teacher.weight.requires_grad
    other = tiny([9.0, 8.0, 7.0, 6.0])
    resumed = other.method(name, 2, **settings, distill=0.25)
    resumed.load_state_dict(state)
    other.train(resumed, 1)
    assert other.teachers[0].weight.tolist() == [weights], "also where the start is gone"
    assert tiny(weights).method(name, 1).state_dict().keys() == {"masks"}


@pytest.mark.parametrize("name", PRUNED_AT_ONCE)
def test_the_share_is_checked(name: str) -> None:
    with pytest.raises(PofError, match="distill=2 must be from 0 to 1"):
        METHODS[name].Settings(distill=2)
