"""Random walks through the states of a model: each state is what it should be, and restore() is exact.

The oracle is small: a state's weights are those that a fresh Elastic gives a copy of the dense model, whatever the way
there; a state's statistics are those last measured or trained in it, else those of the beginning, to which restore()
always returns.
"""

import copy
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pof
from tests.small_models import bits

CONFIGURATIONS = list(itertools.product(("raw", "unit"), ("layer", "global"), ("contiguous", "channels_last")))
SPARSITIES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 0.97)
"""Few enough that a walk comes back to the same state."""
Call = tuple[str, tuple[float, ...]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.bn2 = nn.BatchNorm2d(6, momentum=None)
        self.conv = nn.Conv2d(6, 10, 3)
        self.bn3 = nn.BatchNorm2d(10)
        self.fc = nn.Linear(10, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.stem(x)))
        x = torch.relu(self.bn2(self.depthwise(x)))
        logits: Tensor = self.fc(self.bn3(self.conv(x)).mean((2, 3)))
        return logits


def batch(seed: float) -> Tensor:
    return torch.randn(4, 2, 5, 5, generator=torch.Generator().manual_seed(int(seed)))


def is_statistic(name: str) -> bool:
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


def weights(model: nn.Module) -> dict[str, bytes]:
    return {name: value for name, value in bits(model).items() if not is_statistic(name)}


def statistics(model: nn.Module) -> dict[str, bytes]:
    return {name: value for name, value in bits(model).items() if is_statistic(name)}


class Walk:
    """A model under an Elastic, walked through states, and what is expected of it."""

    def __init__(self, magnitudes: Any, scope: Any, layout: str) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.model(batch(0))  # statistics that are not the initial ones
        if layout == "channels_last":
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.elastic = pof.Elastic(self.model, magnitudes=magnitudes, scope=scope)
        self.settings = {"magnitudes": magnitudes, "scope": scope}
        self.dense = copy.deepcopy(self.model)
        self.strides = self._strides()
        self.state: tuple[float, float] = (0.0, 0.0)
        self.beginning = bits(self.model)
        self.statistics: dict[tuple[float, float], dict[str, bytes]] = {}
        self._weights: dict[tuple[float, float], dict[str, bytes]] = {}

    def do(self, name: str, numbers: tuple[float, ...]) -> None:
        getattr(self, name)(*numbers)
        self.check()

    def prune(self, sparsity: float) -> None:
        self.elastic.prune(sparsity)
        self.state = (sparsity, sparsity)

    def recover(self, one: float, other: float) -> None:
        low, high = sorted((one, other))
        self.elastic.recover(low, high)
        self.state = (low, high)

    def at(self, one: float, other: float, seed: float) -> None:
        before, (low, high) = self.state, sorted((one, other))
        with self.elastic.at(high, recover_from=low):
            self.state = (low, high)
            self.check()
            self.calibrate(seed)
            self.check()
        self.state = before

    def calibrate(self, seed: float) -> None:
        assert self.elastic.calibrate([batch(seed), batch(seed + 1)]) == 2
        self._measured()

    def train_forward(self, seed: float) -> None:
        self.model.train()(batch(seed))
        self._measured()

    def eval_forward(self, seed: float) -> None:
        self.model.eval()(batch(seed))

    def pruned_pass(self, sparsity: float, seed: float) -> None:
        with pof.pruned(self.model, sparsity):
            self.model.train()(batch(seed)).sum().backward()

    def restore(self) -> None:
        self.elastic.restore()
        self.state = (0.0, 0.0)
        self.statistics.pop(self.state, None)
        assert bits(self.model) == self.beginning

    def _measured(self) -> None:
        self.statistics[self.state] = statistics(self.model)

    def check(self) -> None:
        assert weights(self.model) == self._expected_weights()
        assert statistics(self.model) == self.statistics.get(self.state, statistics(self.dense))
        assert self._strides() == self.strides

    def _expected_weights(self) -> dict[str, bytes]:
        if self.state not in self._weights:
            other = copy.deepcopy(self.dense)
            pof.Elastic(other, **self.settings).recover(*self.state)
            self._weights[self.state] = weights(other)
        return self._weights[self.state]

    def _strides(self) -> list[tuple[int, ...]]:
        return [parameter.stride() for parameter in self.model.parameters()]


SEED = st.integers(0, 50).map(float)
SPARSITY = st.sampled_from(SPARSITIES)
CALLS: dict[str, tuple[st.SearchStrategy[float], ...]] = {
    "prune": (SPARSITY,),
    "recover": (SPARSITY, SPARSITY),
    "at": (SPARSITY, SPARSITY, SEED),
    "calibrate": (SEED,),
    "train_forward": (SEED,),
    "eval_forward": (SEED,),
    "restore": (),
}
ONE_CALL = st.one_of(*[st.tuples(st.just(name), st.tuples(*arguments)) for name, arguments in CALLS.items()])


@pytest.mark.parametrize(("magnitudes", "scope", "layout"), CONFIGURATIONS)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(walk=st.lists(ONE_CALL, min_size=1, max_size=30))
def test_every_state_is_the_same_whatever_the_way_there(
    magnitudes: Any, scope: Any, layout: str, walk: list[Call]
) -> None:
    subject = Walk(magnitudes, scope, layout)
    for name, numbers in walk:
        subject.do(name, numbers)
    subject.do("restore", ())


def random_call(source: random.Random, names: tuple[str, ...]) -> Call:
    name = source.choice(names)
    count = {"recover": 2, "prune": 1}.get(name, 0)
    seeds = {"calibrate": 1, "train_forward": 1}.get(name, 0)
    return name, (
        *[source.choice(SPARSITIES) for _ in range(count)],
        *[float(source.randrange(50)) for _ in range(seeds)],
    )


@pytest.mark.parametrize(("magnitudes", "scope", "layout"), CONFIGURATIONS)
def test_restore_after_many_calls_is_bit_equal(magnitudes: Any, scope: Any, layout: str) -> None:
    """125 calls on each of 8 kinds, 1,000 in all."""
    source = random.Random(f"{magnitudes} {scope} {layout}")
    subject = Walk(magnitudes, scope, layout)
    done: Counter[str] = Counter()
    for _ in range(125):
        name, numbers = random_call(source, ("prune", "recover", "calibrate", "train_forward"))
        subject.do(name, numbers)
        done[name] += 1
    assert min(done.values()) > 10
    subject.do("restore", ())


def test_a_thousand_calls_on_one_model() -> None:
    """Sparsities from the whole range, so hardly any state occurs twice; nothing is checked on the way."""
    source = random.Random(0)
    torch.manual_seed(0)
    model = Net()
    model(batch(0))
    beginning = bits(model)
    elastic = pof.Elastic(model, magnitudes="unit")
    x = batch(1)
    calls: list[Callable[[], Any]] = [
        lambda: elastic.prune(source.random()),
        lambda: elastic.recover(*sorted((source.random(), source.random()))),
        lambda: elastic.calibrate([x]),
    ]
    for _ in range(1000):
        source.choice(calls)()
    assert bits(model) != beginning
    elastic.restore()
    assert bits(model) == beginning


@pytest.mark.parametrize("seed", range(3))
def test_pruned_passes_in_between_change_nothing(seed: int) -> None:
    source = random.Random(seed)
    subject = Walk("raw", "layer", "contiguous")
    subject.do("prune", (0.5,))  # from here on there is a dense copy to compare with
    for _ in range(20):
        subject.do(*random_call(source, ("prune", "recover", "restore", "calibrate")))
        subject.do("pruned_pass", (source.choice(SPARSITIES), 3.0))
    subject.do("restore", ())
