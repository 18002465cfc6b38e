"""CrAM: the clean gradient, and the masked one at pruned weights uphill."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from pof.errors import PofError
from pof.methods import Span
from pof.methods.cram import Cram

if TYPE_CHECKING:
    from conftest import MakeTiny

TARGET = torch.tensor([[-5.0, 4.0, 5.0, 2.0]])
HALF = {"rho": 0.5, "low": 0.5, "high": 0.5, "scope": "layer"}


def test_a_step_by_hand(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: w - TARGET)
    method = run.method("cram", 1, **HALF)
    method.gradients(0, run.run_pass)
    # g = w - target = (6, -2, -2, 2), so w' = w + 0.5 g = (4, 1, 2, 5), whose two smallest are the middle ones.
    assert run.seen == [[1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 0.0, 5.0]]
    # g' = (9, -4, -5, 3), masked (9, 0, 0, 3).
    assert run.gradient == [15.0, -2.0, -2.0, 5.0]
    assert run.weights == [1.0, 2.0, 3.0, 4.0]


def test_gradients_of_half_precision_are_taken_unscaled(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: 1024.0 * (w - TARGET))
    wrapped: Any = SimpleNamespace(optimizer=run.optimizer, scaler=SimpleNamespace(get_scale=lambda: 1024.0))
    method = Cram(run.model, wrapped, Cram.Settings(**HALF), Span(1, 1))
    method.gradients(0, run.run_pass)
    assert run.seen[1] == [4.0, 0.0, 0.0, 5.0]
    assert run.gradient == [1024 * value for value in (15.0, -2.0, -2.0, 5.0)]


class Net(nn.Module):
    """With what a second pass could disturb: statistics, and random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.dropout, self.last = nn.Dropout(0.5), nn.Linear(16, 2)
        self.dropped: list[Tensor] = []

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.dropout(self.norm(self.first(inputs)))
        self.dropped.append(hidden == 0)
        return self.last(hidden)


def test_the_second_pass_leaves_no_trace() -> None:
    model, inputs = Net(), torch.randn(32, 8)
    twin = deepcopy(model)
    method = Cram(model, SGD(model.parameters(), lr=0.1), Cram.Settings(), Span(1, 1))

    def run_pass() -> Tensor:
        loss = model(inputs).square().mean()
        loss.backward()
        return loss.detach()

    torch.manual_seed(1)
    loss = method.gradients(0, run_pass)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    plain = twin(inputs).square().mean()
    plain.backward()
    assert torch.equal(after, torch.get_rng_state())
    assert torch.equal(loss, plain.detach())
    for name, value in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert len(model.dropped) == 2
    assert torch.equal(model.dropped[0], model.dropped[1]), "both passes drop the same"
    moved = [not torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), twin.parameters(), strict=True)]
    assert moved.count(True) >= 5, "the second gradient joins for biases and BatchNorm too"


def test_a_failing_second_pass_leaves_no_trace_either(tiny: MakeTiny) -> None:
    run = tiny([1.0, 2.0, 3.0, 4.0], lambda w: w - TARGET)
    method = run.method("cram", 1, **HALF)
    states = []

    def fail_the_second_time() -> Tensor:
        if run.seen:
            raise KeyboardInterrupt
        torch.rand(1)
        states.append(torch.get_rng_state())
        return run.run_pass()

    with pytest.raises(KeyboardInterrupt):
        method.gradients(0, fail_the_second_time)
    assert run.weights == [1.0, 2.0, 3.0, 4.0]
    assert torch.equal(torch.get_rng_state(), states[0])


def test_the_sparsity_is_drawn_by_seed_and_step(tiny: MakeTiny) -> None:
    def zeros(seed: int) -> list[int]:
        run = tiny([float(i) for i in range(1, 1001)])
        method = Cram(run.model, run.optimizer, Cram.Settings(low=0.3, high=0.9), Span(20, 20, seed))
        for step in range(20):
            torch.rand(1)
            method.gradients(step, run.run_pass)
        return [weights.count(0.0) for weights in run.seen[1::2]]

    drawn = zeros(0)
    assert all(300 <= count <= 900 for count in drawn)
    assert len(set(drawn)) == 20
    assert max(drawn) - min(drawn) > 300
    assert zeros(0) == drawn != zeros(1)


def test_global_scope_shares_out_over_layers() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    with torch.no_grad():
        model[0].weight.mul_(10.0)
    zeros = []

    def run_pass() -> Tensor:
        zeros.append([int((layer.weight == 0).sum()) for layer in model])
        loss = model(torch.ones(1, 10)).sum()
        loss.backward()
        return loss.detach()

    for scope in ("global", "layer"):
        settings = Cram.Settings(rho=0.0, low=0.5, high=0.5, scope=scope)
        Cram(model, SGD(model.parameters(), lr=0.1), settings, Span(1, 1)).gradients(0, run_pass)
    assert zeros[0] == zeros[2] == [0, 0], "clean passes"
    assert sum(zeros[1]) == 100
    assert zeros[1][0] < 20
    assert zeros[3] == [50, 50]


def test_what_global_ranking_cannot_reach_is_refused_at_once(tiny: MakeTiny) -> None:
    with pytest.raises(PofError, match="use scope='layer'"):
        tiny([float(i) for i in range(1, 1001)]).method("cram", 1, high=0.995)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rho": -0.1}, "rho=-0.1 must be a number, 0 or more"),
        ({"high": 1.0}, "high=1.0 must be in"),
        ({"low": 0.95}, "low=0.95 must not exceed high=0.9"),
        ({"scope": "row"}, "scope='row' must be one of 'layer', 'global'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        Cram.Settings(**settings)
