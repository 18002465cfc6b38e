"""The paper's method is `pof.attach` for the length of the run."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import pytest
import torch
from torch.optim import SGD

import pof
from pof.errors import PofError

if TYPE_CHECKING:
    from conftest import MakeTiny


@pytest.mark.parametrize("sphere", [True, False])
def test_it_is_attach_over_all_steps(tiny: MakeTiny, sphere: bool) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: w - 1.0, lr=0.1)
    twin = deepcopy(run.model)
    optimizer = SGD(twin.parameters(), lr=0.1)
    attached = pof.attach(twin, optimizer, tr=(0.9, 0.5), steps=5, weight=0.3, sphere=sphere)
    method = run.method("pof", 5, tr=(0.9, 0.5), weight=0.3, sphere=sphere)
    for step in range(5):
        run.train(method, step)
        twin.weight.grad = twin.weight.detach() - 1.0
        optimizer.step()
        assert torch.equal(run.model.weight, twin.weight)
    assert method.figures()["penalty"] == pytest.approx(float(attached.value))
    # The schedule's last step is number 4; the next would still have the same target.
    assert method.figures()["tr"] == pytest.approx(0.5)


def test_tr_may_fall_in_a_part_of_the_run_and_stay(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: w - 1.0, lr=0.1)
    method = run.method("pof", 10, tr=(0.9, 0.5), anneal=0.5)
    seen = []
    for step in range(10):
        run.train(method, step)
        seen.append(method.figures()["tr"])
    assert seen == pytest.approx([0.82, 0.74, 0.66, 0.58, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5])
    with pytest.raises(PofError, match="anneal=0 leaves no time for tr to fall"):
        run.method("pof", 10, anneal=0)


def test_the_hooks_come_off_at_the_end(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0])
    method = run.method("pof", 2, weight=0.3)
    run.train(method, 0, 1)
    method.finish()
    before = run.weights
    run.optimizer.zero_grad()
    run.run_pass()
    run.optimizer.step()
    assert run.weights == before, "a zero gradient moves nothing any more"
