"""The compiled core's rows and penalty beside torch's."""

import pytest
import torch
from torch import nn

import pof
from pof.core.library import SWITCH, core
from pof.ranking.row_layout import PLAIN, RowLayout
from pof.sphere.compiled_rows import can_be_fast


@pytest.fixture(autouse=True)
def _core_again(monkeypatch: pytest.MonkeyPatch) -> None:
    if core() is None:
        pytest.skip("the core was not built")


def without_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    core.cache_clear()


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    made: list[nn.Module] = [
        nn.Linear(33, 7),
        nn.Linear(1, 5),
        nn.Conv2d(5, 9, 3),
        nn.Conv2d(5, 9, 3).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv1d(4, 6, 5),
        nn.ConvTranspose2d(4, 6, 3),
    ]
    with torch.no_grad():
        made[0].weight[2] = 0.0
        made[2].weight[torch.rand_like(made[2].weight) < 0.5] = 0.0
    return made


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("tr", [0.05, 0.5, 0.9, 0.999])
def test_penalty_and_projection_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, number: int, tr: float) -> None:
    found = []
    for fast in (True, False):
        if not fast:
            without_core(monkeypatch)
        layer = layers()[number]
        penalty = pof.Penalty(layer, tr=tr, include=("*",), weight=0.7)
        sphere = pof.Sphere(layer, include=("*",))
        layer.weight.grad = torch.ones_like(layer.weight)
        value = penalty.add_gradient(0, scale=3.0)
        with torch.no_grad():
            layer.weight.add_(layer.weight.grad, alpha=0.1)
        sphere.project()
        found.append((value, layer.weight.grad, layer.weight.detach(), torch.tensor(penalty.mean_cosine)))
    monkeypatch.undo()
    core.cache_clear()
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_what_is_fast() -> None:
    weight = torch.randn(4, 6)
    assert can_be_fast(weight, PLAIN)
    assert not can_be_fast(weight.t(), PLAIN), "columns, not rows, lie together"
    assert not can_be_fast(weight[:, :3], PLAIN), "gaps"
    assert not can_be_fast(weight.double(), PLAIN)
    for layout in (RowLayout(groups=2), RowLayout(matrix=8), RowLayout(last=True)):
        assert not can_be_fast(weight, layout), "rows are not in dimension 0"


def test_a_gradient_of_another_layout_is_added_to() -> None:
    layer = nn.Conv2d(5, 9, 3)
    other = nn.Conv2d(5, 9, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    other.load_state_dict(layer.state_dict())
    for each in (layer, other):
        each.weight.grad = torch.ones(9, 5, 3, 3)
        pof.Penalty(each, tr=0.7, include=("*",)).add_gradient(0)
    torch.testing.assert_close(other.weight.grad, layer.weight.grad)


def test_a_projection_is_seen_by_an_elastic() -> None:
    layer = nn.Linear(16, 8)
    sphere, elastic = pof.Sphere(layer, include=("*",)), pof.Elastic(layer, include=("*",))
    elastic.prune(0.5)
    before = layer.weight._version
    sphere.project()
    assert layer.weight._version > before
