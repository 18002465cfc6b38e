"""Dynamic sparse reparameterisation: the non-zeros move, their number does not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD

from pof.errors import PofError
from pof.methods import Span
from pof.methods.dsr import Dsr
from pof.methods.moving_weights import below, random_keys, split
from pof.ranking.cuts import largest

ONE = [8.0, 0.1, 7.0, 0.2, 6.0, 0.3, 5.0, 0.4]
TWO = [4.0, 0.1, 3.0, 0.2]


class TwoLayers:
    """Eight weights and four, of which 0.5 keeps four and two: 8, 7, 6, 5 and 4, 3. Each step takes `pull` off all."""

    def __init__(self, pull: float = 0.0, steps: int = 100, seed: int = 0, **settings: Any) -> None:
        self.model = nn.Sequential(nn.Linear(8, 1, bias=False), nn.Linear(4, 1, bias=False))
        for layer, values in zip(self.model, (ONE, TWO), strict=True):
            layer.weight.data = torch.tensor([values])
        self.optimizer = SGD(self.model.parameters(), lr=1.0, momentum=0.5)
        self.pull = pull
        chosen = Dsr.Settings(**{"sparsity": 0.5, "period": 1, "end": 1.0, "start": "magnitude", **settings})
        self.method = Dsr(self.model, self.optimizer, chosen, Span(steps, steps, seed))

    def run_pass(self, distill: float = 0.0, teacher: nn.Module | None = None, temperature: float = 1.0) -> Tensor:
        loss = sum(self.pull * layer.weight.sum() for layer in self.model)
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss.detach()

    def train(self, *steps: int) -> None:
        for step in steps:
            self.optimizer.zero_grad()
            self.method.gradients(step, self.run_pass)
            self.optimizer.step()
            self.method.after_step(step)

    @property
    def weights(self) -> list[list[float]]:
        return [layer.weight.detach()[0].tolist() for layer in self.model]

    @property
    def momenta(self) -> list[list[float]]:
        return [self.optimizer.state[layer.weight]["momentum_buffer"][0].tolist() for layer in self.model]

    @property
    def kept(self) -> list[list[bool]]:
        return [mask[0].tolist() for mask in self.method.state_dict()["masks"].values()]


def test_one_move_by_hand() -> None:
    """The threshold 5.5 takes 5 from the first layer and 3 from the second, whose 4 stays because it is the last.

    Of the two, split as the remaining 3 to 1, the first layer gets 2 * 3/4 = 1.5, rounded to 2.
    """
    net = TwoLayers(threshold=5.5, moved=0.3)
    net.train(0)
    assert net.weights == [[8.0, 0.0, 7.0, 0.0, 6.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]
    first, second = net.kept
    assert [first[i] for i in (0, 2, 4)] == [True] * 3
    assert not first[6], "just pruned, so not regrown"
    assert sum(first[i] for i in (1, 3, 5, 7)) == 2, "two of the four free positions"
    assert second == [True, False, False, False], "never emptied; its other weight went to the first layer"
    assert net.method.figures()["sparsity"] == 0.5
    # N_p = 0.3 * 6 = 1.8, and 2 is more than 1.1 * 1.8, so the threshold is halved.
    assert net.method.figures()["threshold"] == 2.75


@pytest.mark.parametrize(
    ("moved", "threshold"),
    [(0.2, 2.75), (0.32, 5.5), (0.35, 5.5), (0.4, 11.0)],
)
def test_the_threshold_follows_the_number_wanted(moved: float, threshold: float) -> None:
    # 2 weights move; wanted are 1.2, 1.92, 2.1, 2.4.
    net = TwoLayers(threshold=5.5, moved=moved)
    net.train(0)
    assert net.method.figures()["threshold"] == threshold


def test_regrown_weights_start_from_zero_without_momentum() -> None:
    # Momentum that is there before any move, also for weights that are not kept.
    net = TwoLayers(pull=0.25, threshold=5.5, period=2)
    net.train(0)
    assert net.weights == [[7.75, 0.0, 6.75, 0.0, 5.75, 0.0, 4.75, 0.0], [3.75, 0.0, 2.75, 0.0]]
    assert net.momenta == [[0.25, 0.0, 0.25, 0.0, 0.25, 0.0, 0.25, 0.0], [0.25, 0.0, 0.25, 0.0]]
    net.train(1)
    # v = 0.5 * 0.25 + 0.25 = 0.375: 5.375 and 4.375 go with 2.375, and 3.375 is the last of its layer.
    assert net.weights == [[7.375, 0.0, 6.375, 0.0, 0.0, 0.0, 0.0, 0.0], [3.375, 0.0, 0.0, 0.0]]
    assert net.momenta == [[0.375, 0.0, 0.375, 0.0, 0.0, 0.0, 0.0, 0.0], [0.375, 0.0, 0.0, 0.0]]
    kept = net.kept
    net.train(2)
    # What was regrown moves from zero like a new weight; all else stays zero.
    fresh = [[i for i, keep in enumerate(layer) if keep] for layer in kept]
    assert [len(layer) for layer in fresh] == [4, 2]
    assert [[net.weights[k][i] for i in fresh[k]] for k in (0, 1)] == [
        [{0: 6.9375, 2: 5.9375}.get(i, -0.25) for i in fresh[0]],
        [{0: 2.9375}.get(i, -0.25) for i in fresh[1]],
    ]
    assert sum(value != 0 for layer in net.weights for value in layer) == 6


def test_positions_depend_on_seed_and_step_alone() -> None:
    def masks(seed: int, noise: int) -> list[list[list[bool]]]:
        net = TwoLayers(pull=1.0, seed=seed, start="random", threshold=3.0)
        seen = []
        for step in range(6):
            torch.manual_seed(noise + step)
            net.train(step)
            seen.append(net.kept)
        return seen

    assert masks(0, noise=1) == masks(0, noise=2)
    assert masks(0, noise=1) != masks(1, noise=1)


def test_as_many_non_zeros_at_all_times() -> None:
    net = TwoLayers(pull=0.7, start="random", sparsity=0.4, threshold=1.0)
    for step in range(40):
        net.train(step)
        assert sum(keep for layer in net.kept for keep in layer) == 12 - round(0.4 * 12)
        assert all(any(layer) for layer in net.kept)
        for weights, kept in zip(net.weights, net.kept, strict=True):
            assert all(keep or weight == 0 for weight, keep in zip(weights, kept, strict=True))


def test_without_enough_free_positions_the_threshold_falls() -> None:
    net = TwoLayers(sparsity=0.1, moved=0.9, threshold=100.0)
    net.train(0)
    # One position is free, and 9 of the 11 weights are below the threshold.
    assert sum(keep for layer in net.kept for keep in layer) == 11
    assert net.method.figures()["threshold"] == 50.0
    net.train(1, 2, 3, 4)
    # 25, 12.5, 6.25; at 6.25 there are still 7 below.
    assert net.method.figures()["threshold"] == 3.125


def test_moves_end_where_the_settings_say() -> None:
    net = TwoLayers(steps=8, period=2, end=0.5, threshold=5.5)
    seen = []
    for step in range(8):
        net.train(step)
        seen.append(net.kept)
    assert seen[0] != seen[1], "after two steps"
    assert seen[2] == seen[1]
    assert seen[7] == seen[3], "none after half of the run"


@given(
    parts=st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=1, max_size=8),
    fraction=st.floats(0, 1),
)
def test_split_gives_out_all_within_the_room(parts: list[tuple[int, int]], fraction: float) -> None:
    shares, room = zip(*parts, strict=True)
    count = round(fraction * sum(room))
    given_out = split(count, shares, room)
    assert sum(given_out) == count
    assert all(0 <= part <= most for part, most in zip(given_out, room, strict=True))
    if all(count <= most for most in room):
        exact = [count * share / sum(shares) for share in shares]
        assert all(abs(part - wanted) <= 1 for part, wanted in zip(given_out, exact, strict=True))


def test_the_pieces_by_hand() -> None:
    weight = torch.tensor([[0.5, -0.25], [2.0, 0.0]])
    every, some = torch.ones(2, 2, dtype=torch.bool), torch.tensor([[True, True], [False, False]])
    assert largest(weight, 2).tolist() == [[True, False], [True, False]]
    assert below(weight, every, 0.5).tolist() == [[False, True], [False, True]]
    assert below(weight, some, 1.0).tolist() == [[False, True], [False, False]], "0.5 is the last that is kept"
    keys = random_keys(weight, Span(1, 1).generator(3))
    assert torch.equal(keys, random_keys(weight, Span(1, 1).generator(3)))
    assert not torch.equal(keys, random_keys(weight, Span(1, 1).generator(4)))
    assert not torch.equal(keys, random_keys(weight, Span(1, 1, seed=-1).generator(3)))
    assert bool(((keys >= 1) & (keys < 2)).all())


def test_a_sparsity_that_empties_layers_is_refused() -> None:
    with pytest.raises(PofError, match=r"sparsity=0\.95 leaves less than a weight for each layer"):
        TwoLayers(sparsity=0.95)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sparsity": 80}, "sparsity=80 must be in"),
        ({"period": 0}, "period=0 must be the steps between two moves"),
        ({"moved": 1.0}, "moved=1.0 must be in"),
        ({"end": 2}, "end=2 must be a share"),
        ({"threshold": 0.0}, "threshold=0 would never move"),
        ({"threshold": -1.0}, "threshold=-1.0 must be a number, 0 or more"),
        ({"start": "zero"}, "start='zero' must be one of 'random', 'magnitude'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PofError, match=message):
        Dsr.Settings(**settings)
