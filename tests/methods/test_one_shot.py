"""One-shot pruning: once, at the start."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.optim import SGD

import pof
from pof.errors import PofError
from pof.methods.one_shot import OneShot
from pof.methods.protocol import Span
from pof.ranking.sparsity_state import Magnitudes, Scope

if TYPE_CHECKING:
    from conftest import MakeTiny


def test_the_smallest_go_and_stay(tiny: MakeTiny) -> None:
    run = tiny([1.0, -2.0, 3.0, -4.0], lambda w: w - 1.0, momentum=0.5, weight_decay=0.5)
    method = run.method("one_shot", 2, sparsity=0.5)
    assert run.weights == [0.0, 0.0, 3.0, -4.0]
    run.train(method, 0)
    # 3 - 0.5 * ((3 - 1) + 0.5 * 3) = 1.25;  -4 - 0.5 * ((-4 - 1) + 0.5 * -4) = -0.5
    assert run.weights == [0.0, 0.0, 1.25, -0.5]
    assert run.momentum == [0.0, 0.0, 3.5, -7.0]
    run.train(method, 1)
    # Smaller than a pruned weight was, and kept all the same: the mask is fixed.
    # 1.25 - 0.5 * (0.25 + 0.625 + 1.75) = -0.0625;  -0.5 - 0.5 * (-1.5 - 0.25 - 3.5) = 2.125
    assert run.weights == [0.0, 0.0, -0.0625, 2.125]
    assert run.seen == [[0.0, 0.0, 3.0, -4.0], [0.0, 0.0, 1.25, -0.5]]


def test_momentum_from_before_is_cleared(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: w, momentum=0.5)
    run.run_pass()
    run.optimizer.step()
    method = run.method("one_shot", 1, sparsity=0.5)
    assert run.momentum == [0.0, 0.0, 3.0, 4.0]
    run.train(method, 0)
    assert run.weights[:2] == [0.0, 0.0]


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_ranked_as_an_elastic_ranks(scope: Scope, magnitudes: Magnitudes) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=4), nn.ConvTranspose2d(8, 4, 3), nn.Linear(5, 7)
    )
    with torch.no_grad():
        model[3].weight[2] *= 30.0
    other = copy.deepcopy(model)
    settings = OneShot.Settings(0.6, scope, magnitudes)
    OneShot(model, SGD(model.parameters(), lr=0.1), settings, Span(1, 1))
    pof.Elastic(other, scope=scope, magnitudes=magnitudes).prune(0.6)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine == 0, theirs == 0)


def test_settings_are_checked() -> None:
    with pytest.raises(PofError, match="scope='row'"):
        OneShot.Settings(scope="row")
    with pytest.raises(PofError, match=r"sparsity=80 must be in \[0, 1\): pass 0\.8"):
        OneShot.Settings(sparsity=80)
