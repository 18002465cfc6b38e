"""Bad sparsities, and weights that cannot be pruned: one clear line, and nothing is touched."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from outside_changes import STATES
from torch import Tensor, nn

import pof
from tests.small_models import TwoNormNet, bits

BAD_SPARSITIES: dict[str, tuple[Any, str]] = {
    "70": (70, "0.7 for 70 %"),
    "-0.1": (-0.1, "-0.1"),
    "1.0": (1.0, "1.0 would leave no weights"),
    "100": (100, "100"),
    "nan": (float("nan"), "nan"),
    "inf": (float("inf"), "inf"),
    "text": ("0.7", "'0.7'"),
    "None": (None, "None"),
    "True": (True, "True"),
    "complex": (0.5j, "0.5j"),
    "list": ([0.5], "[0.5]"),
    "tensor": (torch.tensor([0.5, 0.6]), "tensor"),
}


def uses(elastic: pof.Elastic, model: nn.Module, value: Any) -> Iterator[Callable[[], Any]]:
    """Every way in which a sparsity can be passed."""

    @contextmanager
    def inside(context: Any) -> Iterator[None]:
        with context:
            yield

    yield lambda: elastic.prune(value)
    yield lambda: elastic.recover(0.1, value)
    yield lambda: elastic.at(value).__enter__()
    yield lambda: inside(pof.pruned(model, value)).__enter__()
    yield lambda: pof.Elastic(model, sparsities={"fc": value})
    if value is not None:
        yield lambda: elastic.recover(value, 0.9)
        yield lambda: elastic.at(0.9, recover_from=value).__enter__()
        yield lambda: inside(pof.pruned(model, 0.9, recover_from=value)).__enter__()


@pytest.mark.parametrize("name", BAD_SPARSITIES)
@pytest.mark.parametrize("state", STATES)
def test_a_bad_sparsity_is_one_clear_line_and_touches_nothing(name: str, state: Callable[[pof.Elastic], None]) -> None:
    value, words = BAD_SPARSITIES[name]
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    state(elastic)
    before, was = bits(model), elastic.state
    for use in uses(elastic, model, value):
        with pytest.raises(pof.PofError) as caught:
            use()
        message = str(caught.value)
        assert words in message
        assert "[0, 1)" in message
        assert "\n" not in message
        assert bits(model) == before
        assert elastic.state == was
    elastic.prune(0.35)
    assert elastic.sparsity == pytest.approx(0.35, abs=0.01)


@pytest.mark.parametrize("recover", ["recover", "at", "pruned"])
def test_a_band_the_wrong_way_round(recover: str) -> None:
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    before = bits(model)
    calls: dict[str, Callable[[], Any]] = {
        "recover": lambda: elastic.recover(0.7, 0.3),
        "at": lambda: elastic.at(0.3, recover_from=0.7).__enter__(),
        "pruned": lambda: pof.pruned(model, 0.3, recover_from=0.7).__enter__(),
    }
    low, high = ("sp1", "sp2") if recover == "recover" else ("recover_from", "sparsity")
    with pytest.raises(pof.PofError, match=rf"{low}=0\.7 must not exceed {high}=0\.3.*swap"):
        calls[recover]()
    assert bits(model) == before


def test_recover_needs_both_ends() -> None:
    """`recover(None, 0.7)` is a mistake, not `prune(0.7)`."""
    model = TwoNormNet()
    before = bits(model)
    with pytest.raises(pof.PofError, match=r"sp1=None must be a number in \[0, 1\)"):
        pof.Elastic(model).recover(None, 0.7)  # type: ignore[arg-type]
    assert bits(model) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("at", [(0, 0), (3, 5)])
def test_weights_that_are_not_finite(value: float, magnitudes: Any, scope: Any, at: tuple[int, int]) -> None:
    """In the last layer, so that earlier ones could be written before it is noticed."""
    model = TwoNormNet()
    with torch.no_grad():
        model.fc.weight[at] = value
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes, scope=scope)
    calls: list[Callable[[], Any]] = [
        lambda: elastic.prune(0.5),
        lambda: elastic.recover(0.2, 0.7),
        lambda: elastic.at(0.5).__enter__(),
        lambda: pof.pruned(model, 0.5, magnitudes=magnitudes, scope=scope).__enter__(),
    ]
    for call in calls:
        with pytest.raises(pof.PofError, match=r"'fc\.weight' holds NaN or inf") as caught:
            call()
        assert "\n" not in str(caught.value)
        assert bits(model) == before
    with torch.no_grad():
        model.fc.weight[at] = 0.1
    elastic.refresh()
    elastic.prune(0.5)
    assert elastic.sparsity == 0.5


def test_a_diverged_model_after_refresh_says_nan() -> None:
    model = TwoNormNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.conv.weight.fill_(float("nan"))
    elastic.refresh()
    with pytest.raises(pof.PofError, match=r"'conv\.weight' holds NaN or inf"):
        elastic.prune(0.5)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.ReLU(), "nothing to prune in ReLU"),
        (nn.Sequential(nn.BatchNorm1d(3), nn.ReLU()), "no convolution or linear"),
        (nn.Sequential(nn.BatchNorm1d(3), nn.Embedding(3, 3)), "1.weight is left out .embeddings are not pruned"),
        (nn.Sequential(nn.Conv2d(3, 3, 3)), "the first convolution"),
    ],
)
def test_nothing_to_prune_is_an_error_at_once(model: nn.Module, words: str) -> None:
    with pytest.raises(pof.PofError, match=words):
        pof.Elastic(model)
    with pytest.raises(pof.PofError, match=words):
        pof.pruned(model, 0.5).__enter__()


def quantized() -> Tensor:
    return torch.quantize_per_tensor(torch.randn(6, 6), 0.1, 0, torch.qint8)


UNPRUNABLE: dict[str, tuple[Callable[[], Tensor], str]] = {
    "quantised": (quantized, "qint8"),
    "int8": (lambda: torch.ones(6, 6, dtype=torch.int8), "int8"),
    "float8": (lambda: torch.ones(6, 6).to(torch.float8_e4m3fn), "float8_e4m3fn"),
    "complex": (lambda: torch.ones(6, 6, dtype=torch.complex64), "complex64"),
    "sparse": (lambda: torch.eye(6).to_sparse(), "sparse"),
    "meta": (lambda: torch.empty(6, 6, device="meta"), "meta"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("kind", UNPRUNABLE)
def test_weights_of_a_kind_that_cannot_be_pruned(kind: str) -> None:
    make, words = UNPRUNABLE[kind]
    model = TwoNormNet()
    model.fc.weight = nn.Parameter(make(), requires_grad=False)
    conv = model.conv.weight.detach().clone()
    for call in (lambda: pof.Elastic(model), lambda: pof.pruned(model, 0.5).__enter__()):
        with pytest.raises(pof.PofError, match=words) as caught:
            call()
        assert "'fc.weight'" in str(caught.value)
        assert "\n" not in str(caught.value)
    elastic = pof.Elastic(model, exclude="fc")
    elastic.prune(0.5)
    elastic.restore()
    assert torch.equal(model.conv.weight, conv)


def test_a_weight_that_is_an_expanded_view() -> None:
    """Its rows are one memory, so they cannot be pruned apart: an error, before anything is written."""
    model = TwoNormNet()
    model.fc.weight = nn.Parameter(torch.randn(1, 6).expand(6, 6))
    before = bits(model)
    with pytest.raises(pof.PofError, match=r"'fc\.weight'"):
        pof.Elastic(model).prune(0.5)
    assert bits(model) == before


def test_a_lazy_batchnorm_is_a_clear_error() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d())
    with pytest.raises(pof.PofError, match="run one batch"):
        pof.Elastic(model)
