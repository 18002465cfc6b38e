"""A network that pruning has killed, so that its outputs are always the same, says so; no other one does."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.models import cifar_resnet
from pof.ranking.sparsity_state import Scope
from tests.small_models import bits


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(3, 1))


class Residual(nn.Module):
    """Whatever dies beside it, the input itself goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 2), nn.Linear(2, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x + self.down(torch.relu(self.up(x))), torch.ones(1, 8))


class Odd(nn.Module):
    """Its layers are not called in their order, and one of them works on another dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(x.view(-1, 4, 2).transpose(1, 2))
        return self.third(F.gelu(self.first(x))).softmax(1).flatten(1)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.Conv2d(6, 4, 1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 2),
    ).eval()


class Narrow(nn.Module):
    """Three thin layers, with something between them."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(3, 2)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.second(self.between(self.first(x)))))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both, self.last = nn.Linear(8, 12), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        values, gates = self.both(x).chunk(2, -1)
        return self.last(values * torch.sigmoid(gates))


class Joined(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last = nn.Linear(8, 3), nn.Linear(8, 3), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.cat([torch.tanh(self.one(x)), torch.tanh(self.other(x))], 1))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.attention, self.last = (
            nn.Linear(4, 8),
            nn.MultiheadAttention(8, 2, batch_first=True),
            nn.Linear(8, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        return self.last(self.attention(x, x, x)[0].mean(1))


class Mixer(nn.Module):
    """What comes out of a linear layer over (tokens, features) lies in another order than maps do."""

    def __init__(self, *, crosswise: bool) -> None:
        super().__init__()
        self.features, self.tokens, self.last = nn.Linear(10, 6), nn.Linear(5, 3), nn.Linear(18 if crosswise else 30, 2)
        self.crosswise = crosswise

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.features(x))
        if self.crosswise:
            x = torch.tanh(self.tokens(x.transpose(1, 2)))
        return self.last(x.flatten(1))


BETWEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "modules": nn.Sequential(nn.Dropout1d(), nn.SELU(), nn.Softsign(), nn.LogSigmoid()).eval(),
    "methods": lambda x: x.tanh().clamp(-2, 2).sin(),
    "view": lambda x: torch.tanh(x).view(x.shape[0], -1),
    "shape unknown": lambda x: torch.tanh(x).reshape(-1, x.shape[1]),
}
FOLLOWED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    **{name: (lambda between=between: Narrow(between), (32, 8)) for name, between in BETWEEN.items()},
    "gated": (Gated, (32, 8)),
    "joined": (Joined, (32, 8)),
    "attending": (Attending, (16, 5, 4)),
    "mixer": (lambda: Mixer(crosswise=False), (16, 5, 10)),
    "crosswise mixer": (lambda: Mixer(crosswise=True), (16, 5, 10)),
}


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("name", FOLLOWED)
@torch.no_grad()
def test_no_network_dies_without_a_word_and_no_live_one_is_called_dead(name: str, scope: Scope) -> None:
    make, shape = FOLLOWED[name]
    deaths = 0
    for seed in range(20):
        torch.manual_seed(seed)
        model, x = make().eval().double(), torch.randn(shape).double()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pof.Elastic(model, scope=scope).prune(0.9)
        told = [str(each.message) for each in caught if "outputs are the same" in str(each.message)]
        outputs = model(x)
        is_dead = bool((outputs - outputs[:1]).abs().max() < 1e-14)
        deaths += is_dead
        if is_dead:
            assert len(told) == 1
        elif told:
            assert "perhaps" in told[0]
    assert deaths > 0 or name == "mixer"


def test_what_is_not_understood_raises_no_doubt_in_wide_layers() -> None:
    class Softened(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.second(self.first(x).softmax(1)).sort(1).values).softmax(1)

    torch.manual_seed(0)
    model = Softened()
    with torch.no_grad():
        model.first.weight[:32] = 0  # dead rows, but no dead layer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pof.Elastic(model).prune(0.6)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (chain, (64, 8)),
    "residual": (Residual, (64, 8)),
    "odd": (Odd, (64, 8)),
    "convolutions": (convolutions, (64, 2, 8, 8)),
}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_it_warns_if_outputs_are_constant_and_never_otherwise(name: str) -> None:
    make, shape = MODELS[name]
    died = 0
    for seed in range(25):
        torch.manual_seed(seed)
        model, x = make(), torch.randn(shape)
        elastic = pof.Elastic(model)
        for sparsity in (0.5, 0.9, 0.95):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                elastic.prune(sparsity)
                elastic.prune(0.3)
                elastic.prune(sparsity)
            outputs = model(x)
            told = [each for each in caught if f"pruned at {sparsity:g}, the outputs are the same" in str(each.message)]
            is_constant = bool((outputs == outputs[:1]).all())
            if told:
                assert is_constant
                assert len(told) == 1, "once in each state"
                assert told[0].filename == __file__
                assert len(str(told[0].message)) <= 200
            if name in ("chain", "convolutions"):
                assert bool(told) == (is_constant and not _is_dead_by_value(model, x))
            died += bool(told)
    assert (died == 0) == (name == "residual")


def _is_dead_by_value(model: nn.Module, x: Tensor) -> bool:
    """Whether paths are left, but an activation stops everything that comes along them."""
    without = nn.Sequential(*(nn.Identity() if isinstance(layer, nn.ReLU) else layer for layer in model))  # type: ignore[attr-defined]
    outputs = without(x)
    return not bool((outputs == outputs[:1]).all())


def test_looking_leaves_no_trace() -> None:
    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.last = chain(), None

        def forward(self, x: Tensor) -> Tensor:
            self.last = self.layers(x)
            torch.rand(1)
            return self.last

    torch.manual_seed(0)
    model = Noting()
    elastic, before, state = pof.Elastic(model), bits(model), torch.random.get_rng_state()
    with pytest.warns(UserWarning, match="no path of weights leads through 'layers.1'"):
        elastic.prune(0.95)
    elastic.restore()
    assert bits(model) == before
    assert model.last is None
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_ordinary_network_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pof.planning.live_paths.traced_graph", lambda model: pytest.fail("it takes time"))
    pof.Elastic(cifar_resnet.resnet20()).prune(0.9)


def test_loading_a_dead_network_warns_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, other = chain(), chain()
    pof.save(model, tmp_path / "chain.pof")
    with pytest.warns(UserWarning, match="pruned at 0.95, the outputs are the same") as caught:
        pof.load(tmp_path / "chain.pof", into=other, sparsity=0.95)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pof.load(tmp_path / "chain.pof", into=other, sparsity=0.3)
        pof.load(tmp_path / "chain.pof", into=other)


def test_thin_layers_of_many_weights_are_followed_too() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(16)])
    with pytest.warns(UserWarning, match="the outputs are the same for every input"):
        pof.Elastic(model).prune(0.99)
    with torch.no_grad():
        assert float(model(torch.randn(8, 64)).std(0).max()) < 1e-6


class Branching(nn.Module):
    """A model whose graph cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(3, 1))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = x if x.sum() > 1e9 else self.body(x)
        return found


def test_a_model_that_cannot_be_followed_says_so() -> None:
    elastic = pof.Elastic(Branching())
    with pytest.warns(UserWarning, match="this model cannot be followed"):
        elastic.prune(0.9)
    elastic.restore()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        elastic.prune(0.9)  # once is enough
