"""Elastic: any sparsity in place and back, against torch's own pruning and plain slow loops."""

import copy
import gc
import io
import itertools
import math
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import pof


class Net(nn.Module):
    """Every kind of layer that matters, in the order in which a plan meets them; `stem` is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.fc = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(torch.relu(self.bn(self.stem(x))))
        logits: Tensor = self.fc(self.up(x).mean((2, 3)))
        return logits


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def bits(model: nn.Module) -> dict[str, bytes]:
    """Everything that a model stores, byte by byte."""
    return {
        name: str(value.dtype).encode() + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }


def planned(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights that `Net`'s plan names."""
    return {f"{name}.weight": getattr(model, name).weight.detach().clone() for name in ("depthwise", "up", "fc")}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def rows_by_loop(shape: tuple[int, ...], groups: int | None) -> list[list[int]]:
    """The flat indices of each row: one output unit, in dim 0, or in dim 1 within its group (ConvTranspose)."""
    rows: dict[Any, list[int]] = defaultdict(list)
    for flat, position in enumerate(itertools.product(*map(range, shape))):
        rows[position[0] if groups is None else (position[0] * groups // shape[0], position[1])].append(flat)
    return list(rows.values())


def expected_raw(dense: Tensor, sp1: float, sp2: float) -> tuple[list[float], float]:
    """Rank by (magnitude, index); zero up to sp1, alpha * sign up to sp2, keep the rest. With alpha."""
    flat = dense.double().reshape(-1).tolist()
    order = sorted(range(len(flat)), key=lambda i: (abs(flat[i]), i))
    low, high = round(sp1 * len(flat)), round(sp2 * len(flat))
    band = [i for i in order[low:high] if flat[i] != 0]
    alpha = math.fsum(abs(flat[i]) for i in band) / len(band) if band else 0.0
    for i in order[:low]:
        flat[i] = 0.0
    for i in band:
        flat[i] = math.copysign(alpha, flat[i])
    return flat, alpha


def expected_unit(dense: Tensor, sp1: float, sp2: float, groups: int | None) -> list[float]:
    """The same on rows of norm one, each row then scaled to the norm that it had."""
    # The keys are those of float32 (float64 for float64 weights), so that ties and near-ties rank alike.
    real = np.float64 if dense.dtype is torch.float64 else np.float32
    flat = dense.double().reshape(-1).tolist()
    rows = rows_by_loop(tuple(dense.shape), groups)
    norms = [float(real(math.sqrt(math.fsum(flat[i] ** 2 for i in row)))) for row in rows]
    keys = [0.0] * len(flat)
    for row, norm in zip(rows, norms, strict=True):
        for i in row:
            keys[i] = abs(float(real(flat[i]) / real(norm))) if norm > 0 else 0.0
    order = sorted(range(len(flat)), key=lambda i: (keys[i], i))
    low, high = round(sp1 * len(flat)), round(sp2 * len(flat))
    zeros, band = set(order[:low]), [i for i in order[low:high] if keys[i] != 0]
    alpha = math.fsum(keys[i] for i in band) / len(band) if band else 0.0
    result = [0.0 if i in zeros else value for i, value in enumerate(flat)]
    for row, norm in zip(rows, norms, strict=True):
        for i in set(row) & set(band):
            result[i] = math.copysign(alpha * norm, flat[i])
        now = math.sqrt(math.fsum(result[i] ** 2 for i in row))
        for i in row:
            result[i] *= norm / now if now > 0 and norm > 0 else 1.0
    return result


def assert_is(weight: Tensor, expected: list[float], rtol: float) -> None:
    wanted = torch.tensor(expected, dtype=torch.float64).reshape(weight.shape)
    actual = weight.detach().double()
    assert torch.equal(actual == 0, wanted.to(weight.dtype) == 0), "the zeros are elsewhere"
    torch.testing.assert_close(actual, wanted, rtol=rtol, atol=0.0)


# --- the contract ------------------------------------------------------------------------------------------------


def test_the_lines_of_the_issue() -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    weights = sum(weight.numel() for weight in planned(model).values())

    elastic.prune(0.7)
    assert elastic.state == pof.State(0.7, 0.7)
    assert elastic.sparsity == pytest.approx(0.7, abs=2 / weights)
    assert {name: int((weight == 0).sum()) for name, weight in planned(model).items()} == {
        "depthwise.weight": round(0.7 * 72),
        "up.weight": round(0.7 * 96),
        "fc.weight": round(0.7 * 30),
    }
    elastic.recover(0.3, 0.7)
    assert elastic.state == pof.State(0.7, 0.3)
    assert elastic.sparsity == pytest.approx(0.3, abs=2 / weights)
    with elastic.at(0.9) as inside:
        assert inside is elastic
        assert elastic.sparsity == pytest.approx(0.9, abs=2 / weights)
    assert elastic.state == pof.State(0.7, 0.3)
    with elastic.at(0.9, recover_from=0.5):
        assert elastic.sparsity == pytest.approx(0.5, abs=2 / weights)
    elastic.calibrate([torch.randn(4, 3, 6, 6)])
    elastic.restore()
    assert elastic.state == pof.State(0.0, 0.0)
    assert elastic.sparsity == 0
    assert bits(model) == before


def test_the_model_is_not_rewritten() -> None:
    model = Net()
    parameters = dict(model.named_parameters())
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    types = {name: type(module) for name, module in model.named_modules()}
    keys = list(model.state_dict())
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(0.5)
    elastic.recover(0.2, 0.8)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert {name: type(module) for name, module in model.named_modules()} == types
    assert list(model.state_dict()) == keys
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.is_leaf for parameter in model.parameters())


def test_only_the_plan_is_touched() -> None:
    model = Net()
    before = bits(model)
    pof.Elastic(model).prune(0.9)
    after = bits(model)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"depthwise.weight", "up.weight", "fc.weight"}


def test_layers_lists_zeros_band_and_alpha() -> None:
    model = Net()
    dense = planned(model)
    elastic = pof.Elastic(model)
    assert [(row.name, row.weights, row.zeros, row.band, row.alpha) for row in elastic.layers()] == [
        ("depthwise.weight", 72, 0, 0, 0.0),
        ("up.weight", 96, 0, 0, 0.0),
        ("fc.weight", 30, 0, 0, 0.0),
    ]
    elastic.recover(0.25, 0.75)
    for row in elastic.layers():
        magnitudes = dense[row.name].abs().double().flatten().sort().values
        low, high = round(0.25 * row.weights), round(0.75 * row.weights)
        assert (row.zeros, row.band) == (low, high - low)
        assert row.alpha == pytest.approx(magnitudes[low:high].mean().item(), rel=1e-6)
    elastic.prune(0.75)
    assert {(row.band, row.alpha) for row in elastic.layers()} == {(0, 0.0)}
    table = str(elastic.layers()).splitlines()
    assert table[0].split() == ["weight", "weights", "zeros", "sparsity", "band", "alpha"]
    assert table[1].split() == ["depthwise.weight", "72", "54", "0.75", "0", "0"]


def test_sparsity_counts_what_is_there_now() -> None:
    model = nn.Linear(10, 10)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    with torch.no_grad():
        model.weight.zero_()
    assert elastic.sparsity == 1.0


def test_zeros_that_were_there_count() -> None:
    model = nn.Linear(10, 10)
    with torch.no_grad():
        model.weight[:3] = 0.0
    elastic = pof.Elastic(model)
    assert elastic.sparsity == 0.3
    elastic.prune(0.2)
    assert elastic.sparsity == 0.3, "the zeros are the smallest, so nothing else goes"
    elastic.recover(0.1, 0.5)
    assert elastic.sparsity == 0.3, "a zero has no sign, so the band does not fill it"
    elastic.prune(0.4)
    assert elastic.sparsity == 0.4


@pytest.mark.parametrize(
    ("go", "text"),
    [
        (lambda e: e.restore(), "dense"),
        (lambda e: e.prune(0.7), "pruned at 0.7"),
        (lambda e: e.recover(0.3, 0.7), "recovered 0.3-0.7"),
        (lambda e: e.recover(0.7, 0.7), "pruned at 0.7"),
        (lambda e: e.recover(0.0, 0.0), "dense"),
        (lambda e: e.prune(-0.0), "dense"),
    ],
)
def test_the_state_is_readable(go: Callable[[pof.Elastic], None], text: str) -> None:
    elastic = pof.Elastic(Net())
    elastic.prune(0.5)
    go(elastic)
    assert str(elastic.state) == text


@pytest.mark.parametrize("zero", [0, 0.0, 1e-9, np.float64(0.0)])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_sparsity_zero_is_exactly_dense(zero: float, magnitudes: Any, scope: Any) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes, scope=scope)
    elastic.prune(0.8)
    assert bits(model) != before
    elastic.prune(zero)
    assert bits(model) == before
    elastic.recover(0.2, 0.8)
    elastic.recover(zero, zero)
    assert bits(model) == before


@pytest.mark.parametrize("number", [1 / 2, np.float64(0.5), np.float32(0.5)])
def test_numbers_of_any_kind(number: float) -> None:
    model = nn.Linear(4, 4)
    pof.Elastic(model).prune(number)
    assert int((model.weight == 0).sum()) == 8


# --- against torch's own pruning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.005, 0.1, 0.5, 0.7, 0.9, 0.985, 0.999])
def test_raw_is_l1_unstructured(sparsity: float) -> None:
    model, reference = Net(), Net()
    reference.load_state_dict(model.state_dict())
    pof.Elastic(model).prune(sparsity)
    for name in ("depthwise", "up", "fc"):
        module = getattr(reference, name)
        torch_prune.l1_unstructured(module, "weight", amount=sparsity)
        torch_prune.remove(module, "weight")
    assert same(planned(model), planned(reference))


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.7, 0.9])
def test_raw_global_is_global_unstructured(sparsity: float) -> None:
    model, reference = Net(), Net()
    reference.load_state_dict(model.state_dict())
    pof.Elastic(model, scope="global").prune(sparsity)
    modules = [(getattr(reference, name), "weight") for name in ("depthwise", "up", "fc")]
    torch_prune.global_unstructured(modules, torch_prune.L1Unstructured, amount=sparsity)
    assert same(planned(model), planned(reference))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("sparsities", [(0.7, 0.3, 0.99999), (0.00001, 0.5, 0.9)])
def test_a_layer_large_enough_for_the_sorted_ladder(dtype: torch.dtype, sparsities: tuple[float, ...]) -> None:
    """Half-precision weights are full of ties, so the reference is a stable sort."""
    model = nn.Linear(300, 260).to(dtype)
    dense = model.weight.detach().clone()
    order = dense.abs().double().flatten().argsort(stable=True)
    elastic = pof.Elastic(model)
    for sparsity in sparsities:
        elastic.prune(sparsity)
        expected = dense.flatten().clone()
        expected[order[: round(sparsity * 78_000)]] = 0.0
        assert torch.equal(model.weight.detach().flatten(), expected)
    elastic.recover(0.25, 0.75)
    expected = dense.flatten().clone()
    expected[order[:19_500]] = 0.0
    band = order[19_500:58_500]
    alpha = dense.flatten()[band].abs().double().mean()
    expected[band] = (alpha * dense.flatten()[band].sign().double()).to(dtype)
    torch.testing.assert_close(model.weight.detach().flatten(), expected, rtol=1e-6, atol=0.0)
    elastic.restore()
    assert torch.equal(model.weight, dense)


# --- against plain loops -----------------------------------------------------------------------------------------

# -0.0, subnormals, ties and huge values included; a grid makes ties likely.
ANY_FLOAT = st.one_of(st.floats(width=32, allow_nan=False, allow_infinity=False), st.sampled_from([-1.0, 0.0, 0.5]))
SPARSITY = st.floats(0, 1, exclude_max=True)


@settings(deadline=None, max_examples=200)
@given(values=st.lists(ANY_FLOAT, min_size=1, max_size=40), ends=st.tuples(SPARSITY, SPARSITY))
def test_raw_is_the_plain_loop_on_any_floats(values: list[float], ends: tuple[float, float]) -> None:
    model = nn.Linear(len(values), 1, bias=False)
    dense = torch.tensor([values])
    with torch.no_grad():
        model.weight.copy_(dense)
    sp1, sp2 = sorted(ends)
    elastic = pof.Elastic(model)
    elastic.prune(sp2)
    assert model.weight.flatten().tolist() == expected_raw(dense, sp2, sp2)[0]
    elastic.recover(sp1, sp2)
    expected, alpha = expected_raw(dense, sp1, sp2)
    assert_is(model.weight, expected, rtol=1e-6 if alpha > 1e-30 else 1.0)
    elastic.restore()
    assert bits(model)["weight"].endswith(dense.numpy().tobytes())


LAYERS: dict[str, tuple[Callable[[], nn.Module], int | None]] = {
    "linear": (lambda: nn.Linear(9, 7), None),
    "conv1d": (lambda: nn.Conv1d(3, 5, 3), None),
    "conv2d": (lambda: nn.Conv2d(3, 6, 3), None),
    "conv3d": (lambda: nn.Conv3d(2, 4, (3, 2, 1)), None),
    "grouped": (lambda: nn.Conv2d(6, 4, 3, groups=2), None),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, groups=6), None),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 3, 3), 1),
    "transposed2d": (lambda: nn.ConvTranspose2d(4, 6, 2), 1),
    "transposed2d grouped": (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), 2),
    "transposed2d depthwise": (lambda: nn.ConvTranspose2d(5, 5, 3, groups=5), 5),
    "transposed3d grouped": (lambda: nn.ConvTranspose3d(4, 4, 2, groups=2), 2),
}
BANDS = [(0.7, 0.7), (0.3, 0.7), (0.0, 0.5), (0.5, 0.95), (0.0, 0.999)]


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("band", BANDS)
def test_raw_is_the_plain_loop(kind: str, band: tuple[float, float]) -> None:
    layer = LAYERS[kind][0]()
    dense = layer.weight.detach().clone()
    pof.Elastic(layer, include="weight").recover(*band)
    expected, _ = expected_raw(dense, *band)
    assert_is(layer.weight, expected, rtol=1e-6)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("band", BANDS)
def test_unit_is_the_plain_loop(kind: str, band: tuple[float, float]) -> None:
    make, groups = LAYERS[kind]
    layer = make()
    with torch.no_grad():  # rows of very different norms, so that raw ranking would give something else
        for number, row in enumerate(rows_by_loop(tuple(layer.weight.shape), groups)):
            layer.weight.view(-1)[row] *= 10.0 ** (number % 4 - 2)
    dense = layer.weight.detach().clone()
    assert rank_differs(dense, 0.5, groups)
    pof.Elastic(layer, include="weight", magnitudes="unit").recover(*band)
    assert_is(layer.weight, expected_unit(dense, *band, groups), rtol=2e-6)


def rank_differs(dense: Tensor, sparsity: float, groups: int | None) -> bool:
    raw, unit = expected_raw(dense, sparsity, sparsity)[0], expected_unit(dense, sparsity, sparsity, groups)
    return [value == 0 for value in raw] != [value == 0 for value in unit]


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=1, max_size=6),
    scale=st.sampled_from([1.0, 0.3, 1e-20, 1e15]),
    ends=st.tuples(SPARSITY, SPARSITY),
)
def test_unit_is_the_plain_loop_on_a_grid(rows: list[list[int]], scale: float, ends: tuple[float, float]) -> None:
    """Small integers: ties within and between rows, rows of zeros, emptied rows."""
    model = nn.Linear(3, len(rows), bias=False)
    dense = torch.tensor(rows, dtype=torch.float32) * scale
    with torch.no_grad():
        model.weight.copy_(dense)
    sp1, sp2 = sorted(ends)
    elastic = pof.Elastic(model, magnitudes="unit")
    for band in ((sp1, sp2), (sp2, sp2)):
        elastic.recover(*band)
        assert_is(model.weight, expected_unit(dense, *band, None), rtol=3e-6)


def test_unit_rows_keep_their_norm_and_untouched_rows_their_bits() -> None:
    model = nn.Linear(20, 6)
    with torch.no_grad():
        model.weight[0] = 1.0  # all equal: unit magnitudes 0.22 each
        model.weight[1] = torch.linspace(1e-4, 1.0, 20)
        model.weight[2] = 3.0
        model.weight[3] = 0.0
        model.weight[4] = torch.linspace(1e-4, 50.0, 20)
        model.weight[5] = torch.linspace(1e-4, 1e-3, 20)
    dense = model.weight.detach().clone()
    norms = dense.norm(dim=1)
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(0.4)
    untouched = [0, 2]
    assert torch.equal(model.weight[untouched], dense[untouched])
    assert not model.weight[3].any(), "a row of zeros has no sphere"
    for row in (1, 4, 5):
        assert 0 < int((model.weight[row] == 0).sum()) < 20
        assert not torch.equal(model.weight[row], dense[row])
    torch.testing.assert_close(model.weight.norm(dim=1), norms, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_unit_an_emptied_row_stays_zero(dtype: torch.dtype) -> None:
    """On the sphere a row of equal weights can be pruned whole: 1/sqrt(n) each is less than others keep."""
    model = nn.Linear(16, 4).to(dtype)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0] = 5.0
        model.weight[1:, :4] = 1.0
        model.weight[1:, 4:] = 0.5
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(52 / 64)
    weight = model.weight.detach()
    assert not weight[0].any()
    assert weight.isfinite().all()
    assert int((weight == 0).sum()) == 52
    # 4 equal weights carry the norm of 4 ones and 12 halves: sqrt(7) / 2 each
    expected = torch.full((3, 4), math.sqrt(7) / 2, dtype=dtype)
    torch.testing.assert_close(weight[1:, :4], expected, rtol=4 * torch.finfo(dtype).eps, atol=0.0)


def test_unit_with_rows_of_extreme_range() -> None:
    """1e-30 / 1e20 is no float32: the weight must not vanish because its key does."""
    model = nn.Linear(2, 2, bias=False)
    dense = torch.tensor([[0.0, 1.0], [1e20, 1e-30]])
    with torch.no_grad():
        model.weight.copy_(dense)
    pof.Elastic(model, magnitudes="unit").prune(0.25)
    assert torch.equal(model.weight, dense), "0.25 prunes the one zero, and no other row loses anything"


def test_unit_with_rows_whose_norm_is_no_float32() -> None:
    model = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(3e38)
        model.weight[0, 0] = 1e38
    elastic = pof.Elastic(model, magnitudes="unit")
    before = bits(model)
    try:
        elastic.prune(0.125)
    except pof.PofError:
        assert bits(model) == before
    else:
        assert model.weight.isfinite().all()
        assert int((model.weight == 0).sum()) == 1


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("band", BANDS)
def test_other_dtypes(dtype: torch.dtype, rtol: float, magnitudes: Any, band: tuple[float, float]) -> None:
    layer = nn.Linear(11, 13).to(dtype)
    dense = layer.weight.detach().clone()
    elastic = pof.Elastic(layer, magnitudes=magnitudes)
    elastic.recover(*band)
    assert layer.weight.dtype is dtype
    if magnitudes == "raw":
        assert_is(layer.weight, expected_raw(dense, *band)[0], rtol=torch.finfo(dtype).eps)
    else:
        assert_is(layer.weight, expected_unit(dense, *band, None), rtol=rtol)
    elastic.restore()
    assert torch.equal(layer.weight, dense)


def test_a_model_of_mixed_dtypes() -> None:
    model = Net()
    model.fc.to(torch.float16)
    model.up.to(torch.float64)
    before = bits(model)
    for scope, magnitudes in itertools.product(("layer", "global"), ("raw", "unit")):
        elastic = pof.Elastic(model, scope=scope, magnitudes=magnitudes)  # type: ignore[arg-type]
        elastic.recover(0.3, 0.8)
        assert elastic.sparsity == pytest.approx(0.3, abs=0.01)
        elastic.restore()
        assert bits(model) == before


# --- scope="global" ----------------------------------------------------------------------------------------------


def global_counts_by_loop(keys: dict[str, list[float]], sparsity: float) -> dict[str, int]:
    """Rank everything together, but for the largest 1 % (at least one) of each layer, which always stay."""
    candidates = []
    for position, (name, values) in enumerate(keys.items()):
        order = sorted(range(len(values)), key=lambda i, values=values: (values[i], i))  # type: ignore[misc]
        most = len(values) - max(1, math.ceil(0.01 * len(values)))
        candidates += [(values[i], position, i, name) for i in order[:most]]
    chosen = sorted(candidates)[: round(sparsity * sum(map(len, keys.values())))]
    return {name: sum(item[3] == name for item in chosen) for name in keys}


@pytest.mark.parametrize("sparsity", [0.05, 0.3, 0.6, 0.9, 0.98])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_global_ranks_all_layers_together_and_empties_none(sparsity: float, magnitudes: Any) -> None:
    model = nn.Sequential(nn.Linear(20, 10), nn.Linear(10, 30), nn.Linear(30, 10))
    with torch.no_grad():
        model[1].weight.mul_(1e-4)  # raw ranking would empty it first
        model[2].weight[:5] *= 100
    keys = {}
    for name, layer in model.named_children():
        weight = layer.weight.detach().double()
        if magnitudes == "unit":  # rows scaled to a root mean square of one, so that wide layers compare with narrow
            weight = weight / weight.norm(dim=1, keepdim=True) * math.sqrt(weight.shape[1])
        keys[f"{name}.weight"] = weight.abs().flatten().tolist()
    elastic = pof.Elastic(model, scope="global", magnitudes=magnitudes)
    elastic.prune(sparsity)
    zeros = {row.name: row.zeros for row in elastic.layers()}
    assert zeros == global_counts_by_loop(keys, sparsity)
    assert sum(zeros.values()) == round(sparsity * 800)
    assert all(row.zeros < row.weights for row in elastic.layers())


def test_global_band_lies_between_the_two_global_counts() -> None:
    model = Net()
    elastic = pof.Elastic(model, scope="global")
    elastic.prune(0.3)
    low = {row.name: row.zeros for row in elastic.layers()}
    elastic.prune(0.8)
    high = {row.name: row.zeros for row in elastic.layers()}
    elastic.recover(0.3, 0.8)
    assert {row.name: (row.zeros, row.zeros + row.band) for row in elastic.layers()} == {
        name: (low[name], high[name]) for name in low
    }


def test_global_beyond_its_floor_is_an_error_and_touches_nothing() -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model, scope="global")
    for call in (lambda: elastic.prune(0.999), lambda: elastic.recover(0.2, 0.999)):
        with pytest.raises(pof.PofError, match=r"sparsity=0\.999 .*scope='layer'"):
            call()
        assert bits(model) == before
    elastic.prune(0.5)
    halfway = bits(model)
    with pytest.raises(pof.PofError, match="scope='layer'"):
        elastic.prune(0.999)
    assert bits(model) == halfway
    elastic.restore()
    assert bits(model) == before


# --- per-layer overrides -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_a_fixed_sparsity_holds_whenever_the_model_is_not_dense(magnitudes: Any) -> None:
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model, magnitudes=magnitudes, sparsities={"fc": 0.5, "up.weight": 0.0})

    def zeros() -> dict[str, int]:
        return {row.name: row.zeros for row in elastic.layers()}

    elastic.prune(0.9)
    assert zeros() == {"depthwise.weight": round(0.9 * 72), "up.weight": 0, "fc.weight": 15}
    elastic.prune(0.1)
    assert zeros() == {"depthwise.weight": round(0.1 * 72), "up.weight": 0, "fc.weight": 15}
    elastic.recover(0.2, 0.9)
    assert zeros() == {"depthwise.weight": round(0.2 * 72), "up.weight": 0, "fc.weight": 6}
    assert {row.name: row.band for row in elastic.layers()}["fc.weight"] == 9, "the band ends at the fixed sparsity"
    elastic.recover(0.7, 0.9)
    assert zeros()["fc.weight"] == 15, "a band that would begin above the fixed sparsity is empty"
    elastic.prune(0.0)
    assert bits(model) == before


def test_a_fixed_sparsity_in_global_scope_leaves_the_rest_to_share() -> None:
    model = Net()
    elastic = pof.Elastic(model, scope="global", sparsities={"fc": 0.5})
    elastic.prune(0.9)
    zeros = {row.name: row.zeros for row in elastic.layers()}
    assert zeros["fc.weight"] == 15
    assert zeros["depthwise.weight"] + zeros["up.weight"] == round(0.9 * (72 + 96))
    elastic.recover(0.3, 0.9)
    zeros = {row.name: row.zeros for row in elastic.layers()}
    assert zeros["fc.weight"] == 9
    assert zeros["depthwise.weight"] + zeros["up.weight"] == round(0.3 * (72 + 96))


def test_include_and_exclude_reach_the_elastic_and_survive_a_refresh() -> None:
    model = Net()
    elastic = pof.Elastic(model, include=(glob for glob in ("stem", "fc")), exclude=iter(["fc"]))
    for _ in range(2):
        assert [row.name for row in elastic.layers()] == ["stem.weight"]
        elastic.refresh()


def test_the_overrides_are_those_of_when_it_was_made() -> None:
    sparsities = {"fc": 0.5}
    model = Net()
    elastic = pof.Elastic(model, sparsities=sparsities)
    sparsities["fc"] = 0.9
    elastic.refresh()
    elastic.prune(0.1)
    assert int((model.fc.weight == 0).sum()) == 15


# --- shapes, layouts, ties ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("weight", [0.5, -3.0, 0.0])
def test_one_weight(magnitudes: Any, weight: float) -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(weight)
    elastic = pof.Elastic(model, magnitudes=magnitudes)
    for sparsity, expected in ((0.4, weight), (0.5, weight), (0.6, 0.0), (0.999, 0.0)):
        elastic.prune(sparsity)
        assert model.weight.item() == expected, "Python's round(0.5) is 0"
    elastic.recover(0.1, 0.9)
    assert model.weight.item() == weight, "alpha is the only magnitude there is"
    elastic.restore()
    assert model.weight.item() == weight


def test_one_weight_in_global_scope_is_never_pruned() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 30))
    with torch.no_grad():
        model[0].weight.fill_(1e-6)
    elastic = pof.Elastic(model, scope="global")
    elastic.prune(0.9)
    assert [row.zeros for row in elastic.layers()] == [0, 28]


@pytest.mark.parametrize("shape", [(6, 4), (3, 2, 2, 2)])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_ties_go_by_index(shape: tuple[int, ...], magnitudes: Any) -> None:
    model = nn.Linear(4, 6) if len(shape) == 2 else nn.Conv2d(2, 3, 2)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.weight.view(-1)[::2].neg_()
    elastic = pof.Elastic(model, include="weight", magnitudes=magnitudes)
    for sparsity in (0.9, 0.25, 0.5):
        elastic.prune(sparsity)
        count = round(sparsity * 24)
        zero = model.weight.detach().flatten() == 0
        assert zero.tolist() == [True] * count + [False] * (24 - count)


def test_all_zeros_is_fine_in_every_state() -> None:
    for magnitudes, scope in itertools.product(("raw", "unit"), ("layer", "global")):
        model = nn.Linear(6, 4)
        nn.init.zeros_(model.weight)
        elastic = pof.Elastic(model, magnitudes=magnitudes, scope=scope)  # type: ignore[arg-type]
        for go in (lambda e: e.prune(0.5), lambda e: e.recover(0.2, 0.6), lambda e: e.restore()):
            go(elastic)
            assert not model.weight.any()
            assert model.weight.isfinite().all()
        assert elastic.sparsity == 1.0


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 1000),
    grid=st.booleans(),
    scope=st.sampled_from(["layer", "global"]),
    magnitudes=st.sampled_from(["raw", "unit"]),
    ends=st.tuples(st.floats(0, 0.95), st.floats(0, 0.95)),
)
def test_masks_nest(seed: int, grid: bool, scope: Any, magnitudes: Any, ends: tuple[float, float]) -> None:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(9, 8), nn.Conv1d(2, 7, 3), nn.Conv1d(7, 7, 3, groups=7))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
            if grid:  # multiples of 0.5, never zero: many ties
                parameter.copy_(parameter.mul(2).floor().add(0.5))
    elastic = pof.Elastic(model, include="*.weight", scope=scope, magnitudes=magnitudes)
    zeros = []
    for sparsity in sorted(ends):
        elastic.prune(sparsity)
        zeros.append([model.get_parameter(entry.name).detach() == 0 for entry in elastic.plan])
        assert sum(int(zero.sum()) for zero in zeros[-1]) == (
            round(sparsity * 135)
            if scope == "global"
            else sum(round(sparsity * entry.weights) for entry in elastic.plan)
        )
    assert all(bool((sparser | ~denser).all()) for denser, sparser in zip(*zeros, strict=True))
    elastic.recover(*sorted(ends))
    left = [model.get_parameter(entry.name).detach() == 0 for entry in elastic.plan]
    assert all(torch.equal(a, b) for a, b in zip(left, zeros[0], strict=True)), "a band leaves what sp1 prunes"


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("tied", [False, True])
def test_channels_last_stays_and_computes_the_same(magnitudes: Any, scope: Any, tied: bool) -> None:
    plain = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 12, 3), nn.ConvTranspose2d(12, 8, 3, groups=2), nn.Conv2d(8, 8, 3, groups=8)
    )
    if tied:  # values on a grid: the index decides, and it must be that of the row-major order
        with torch.no_grad():
            for parameter in plain.parameters():
                parameter.copy_(parameter.mul(8).round().div(8))
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    strides = [parameter.stride() for parameter in last.parameters()]
    assert strides != [parameter.stride() for parameter in plain.parameters()]
    before = bits(last)
    elastics = [pof.Elastic(model, magnitudes=magnitudes, scope=scope) for model in (plain, last)]
    for sp1, sp2 in ((0.7, 0.7), (0.2, 0.6), (0.0, 0.9)):
        for elastic in elastics:
            elastic.recover(sp1, sp2)
        assert bits(plain) == bits(last)
        assert [parameter.stride() for parameter in last.parameters()] == strides
    elastics[1].restore()
    assert bits(last) == before
    assert [parameter.stride() for parameter in last.parameters()] == strides


def test_channels_last_of_a_large_layer_is_the_same() -> None:
    plain = nn.Conv2d(128, 64, 3)
    last = copy.deepcopy(plain).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert plain.weight.numel() > 1 << 16
    for band in ((0.9, 0.9), (0.4, 0.7)):
        for magnitudes in ("raw", "unit"):
            for model in (plain, last):
                elastic = pof.Elastic(model, include="weight", magnitudes=magnitudes)  # type: ignore[arg-type]
                elastic.recover(*band)
            assert bits(plain) == bits(last)
            for model in (plain, last):
                with torch.no_grad():
                    model.weight.copy_(torch.randn(64, 128, 3, 3, generator=torch.Generator().manual_seed(5)))


def gapped() -> nn.Parameter:
    return nn.Parameter(torch.randn(8, 12)[:, ::2])


def transposed() -> nn.Parameter:
    return nn.Parameter(torch.randn(6, 8).t())


def offset() -> nn.Parameter:
    return nn.Parameter(torch.randn(100)[13:61].view(8, 6))


@pytest.mark.parametrize("make", [gapped, transposed, offset])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_parameter_of_any_layout(make: Callable[[], nn.Parameter], magnitudes: Any, scope: Any) -> None:
    model, plain = nn.Linear(6, 8), nn.Linear(6, 8)
    model.weight = make()
    stride = model.weight.stride()
    around = model.weight.untyped_storage().nbytes()
    with torch.no_grad():
        plain.weight.copy_(model.weight)
    dense = plain.weight.detach().clone()
    elastics = [pof.Elastic(each, magnitudes=magnitudes, scope=scope) for each in (model, plain)]
    for sp1, sp2 in ((0.5, 0.5), (0.25, 0.75), (0.0, 0.9), (0.0, 0.0)):
        for elastic in elastics:
            elastic.recover(sp1, sp2)
        assert torch.equal(model.weight, plain.weight)
        assert model.weight.stride() == stride
    assert torch.equal(model.weight, dense)
    assert model.weight.untyped_storage().nbytes() == around


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_rows_that_lose_nothing_keep_their_bits_in_any_layout(dtype: torch.dtype) -> None:
    """Sums over another memory layout round otherwise: norms that are compared must be taken alike."""
    model = nn.Linear(50, 40)
    model.weight = nn.Parameter(torch.randn(40, 100, dtype=dtype)[:, ::2])
    dense = model.weight.detach().clone()
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(3 / 2000)
    untouched = (model.weight.detach() != 0).all(1)
    assert int(untouched.sum()) >= 37
    assert torch.equal(model.weight[untouched], dense[untouched])
    elastic.recover(0.3, 0.7)
    with pof.pruned(model, 0.5):
        pass
    elastic.restore()  # and this is no false alarm
    assert torch.equal(model.weight, dense)


def test_memory_around_a_view_is_not_touched() -> None:
    whole = torch.randn(8, 12)
    others = whole[:, 1::2].clone()
    model = nn.Linear(6, 8)
    model.weight = nn.Parameter(whole[:, ::2])
    elastic = pof.Elastic(model)
    elastic.prune(0.9)
    elastic.recover(0.1, 0.9)
    assert torch.equal(whole[:, 1::2], others)


def test_parameters_that_are_views_of_one_flat_buffer() -> None:
    """As optimisers with flat buffers leave them."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    start = 0
    for parameter in model.parameters():
        parameter.data = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
    dense = flat.clone()
    elastic = pof.Elastic(model)
    for band in ((0.5, 0.5), (0.2, 0.8)):
        elastic.recover(*band)
        assert elastic.sparsity == pytest.approx(band[0], abs=0.01)
    elastic.restore()
    assert torch.equal(flat, dense)


# --- kinds of models ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [{}, {"kdim": 6, "vdim": 4}])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_multihead_attention(dims: dict[str, int], magnitudes: Any) -> None:
    model = nn.MultiheadAttention(8, 2, **dims)
    before = bits(model)
    names = (["q_proj_weight", "k_proj_weight", "v_proj_weight"] if dims else ["in_proj_weight"]) + ["out_proj.weight"]
    dense = {name: model.get_parameter(name).detach().clone() for name in names}
    elastic = pof.Elastic(model, magnitudes=magnitudes)
    assert [row.name for row in elastic.layers()] == names
    elastic.prune(0.75)
    for name in names:
        expected = (
            expected_raw(dense[name], 0.75, 0.75)[0]
            if magnitudes == "raw"
            else expected_unit(dense[name], 0.75, 0.75, None)
        )
        assert_is(model.get_parameter(name), expected, rtol=1e-6)
    elastic.restore()
    assert bits(model) == before


@pytest.mark.parametrize("same_object", [True, False])
def test_tied_weights_stay_tied(same_object: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight if same_object else nn.Parameter(model[0].weight.detach())
    before = bits(model)
    elastic = pof.Elastic(model)
    assert [(row.name, row.weights) for row in elastic.layers()] == [("0.weight", 36)]
    for sp1, sp2 in ((0.5, 0.5), (0.25, 0.75), (0.0, 0.0)):
        elastic.recover(sp1, sp2)
        assert elastic.sparsity == sp1
        assert model[2].weight.data_ptr() == model[0].weight.data_ptr()
        assert torch.equal(model[2].weight, model[0].weight)
        assert (model[2].weight is model[0].weight) is same_object
    assert bits(model) == before


def test_weights_that_share_memory_in_another_shape() -> None:
    """An autoencoder whose decoder is the encoder's transpose: both are pruned, and dense again."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6))
    model[1].weight = nn.Parameter(model[0].weight.detach().t())
    before = bits(model)
    for magnitudes in ("raw", "unit"):
        with pytest.warns(UserWarning, match=r"1\.weight is not pruned: it shares memory with 0\.weight"):
            elastic = pof.Elastic(model, magnitudes=magnitudes)
        for sparsity in (0.5, 0.75):
            elastic.prune(sparsity)
            assert elastic.sparsity == sparsity
            assert torch.equal(model[1].weight, model[0].weight.t())
        elastic.restore()
        assert bits(model) == before


def test_requires_grad_and_grad_are_untouched() -> None:
    model = Net()
    model.fc.weight.requires_grad_(False)
    model(torch.randn(2, 3, 6, 6)).square().sum().backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    copies = {name: grad.clone() for name, grad in grads.items() if grad is not None}
    assert len(copies) == 9
    elastic = pof.Elastic(model, magnitudes="unit")
    for go in (lambda: elastic.prune(0.8), lambda: elastic.recover(0.1, 0.5), elastic.restore):
        go()
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad is (name != "fc.weight")
            assert parameter.grad is grads[name]
            assert parameter.grad_fn is None
    assert all(torch.equal(model.get_parameter(name).grad, copies[name]) for name in copies)  # type: ignore[arg-type]


def test_training_goes_on_from_a_pruned_model() -> None:
    model = Net()
    pof.Elastic(model).prune(0.5)
    model(torch.randn(4, 3, 6, 6)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert bool(model.fc.weight.grad[model.fc.weight == 0].any()), "nothing masks the gradient"  # type: ignore[index]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("made_inside", [False, True])
def test_callers_without_gradients(context: Callable[[], Any], magnitudes: Any, made_inside: bool) -> None:
    """The Elastic is made, or first used, inside; then it is used outside, and the other way round."""
    model = Net()
    before = bits(model)
    x = torch.randn(4, 3, 6, 6)
    elastic = None if made_inside else pof.Elastic(model, magnitudes=magnitudes)
    with context():
        if elastic is None:
            elastic = pof.Elastic(model, magnitudes=magnitudes)
        elastic.prune(0.5)
        elastic.calibrate([x])
        model(x)
        elastic.recover(0.2, 0.8)
        inside = bits(model)
    elastic.prune(0.6)
    elastic.calibrate([x])
    elastic.recover(0.2, 0.8)
    assert bits(model) == inside
    with context():
        elastic.prune(0.5)
        with elastic.at(0.9):
            model(x)
    model(x).sum().backward()
    assert model.fc.weight.grad is not None
    elastic.prune(0.7)
    elastic.restore()
    assert bits(model) == before


def test_surroundings_do_not_matter() -> None:
    plain, other = Net(), Net()
    other.load_state_dict(plain.state_dict())
    for model, magnitudes in itertools.product((plain, other), ("raw", "unit")):
        elastic = pof.Elastic(model, magnitudes=magnitudes)  # type: ignore[arg-type]
        if model is other:
            torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=model is other):
                elastic.recover(0.3, 0.7)
        finally:
            torch.set_default_dtype(torch.float32)
    assert bits(plain) == bits(other)


def test_a_model_made_under_inference_mode() -> None:
    with torch.inference_mode():
        model = Net().eval()
        before = bits(model)
        elastic = pof.Elastic(model)
        elastic.prune(0.5)
        assert elastic.sparsity == 0.5
        elastic.calibrate([torch.randn(4, 3, 6, 6)])
        elastic.recover(0.2, 0.8)
        elastic.restore()
        assert bits(model) == before


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models(in_place: bool) -> None:
    torch.compiler.reset()
    model = Net().eval()
    keys = list(model.state_dict())
    x = torch.randn(2, 3, 6, 6)
    if in_place:
        model.compile(backend="eager")
        compiled: Any = model
    else:
        compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        dense = compiled(x)
        elastic = pof.Elastic(compiled)
        assert [row.name for row in elastic.layers()] == ["depthwise.weight", "up.weight", "fc.weight"]
        elastic.prune(0.7)
        pruned = compiled(x)
        assert torch.equal(pruned, model.forward(x))
        assert not torch.allclose(pruned, dense)
        elastic.restore()
        assert torch.equal(compiled(x), dense)
    assert list(model.state_dict()) == keys


# --- the model on its own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("go", [lambda e: e.prune(0.7), lambda e: e.recover(0.3, 0.7), lambda e: e.restore()])
def test_a_dropped_elastic_leaves_the_model_as_it_is(go: Callable[[pof.Elastic], None]) -> None:
    model = Net()
    elastic = pof.Elastic(model)
    elastic.prune(0.2)
    go(elastic)
    state = bits(model)
    del elastic
    gc.collect()
    assert bits(model) == state


def via_pickle(model: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(model))
    return loaded


def via_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def via_state_dict(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = Net()
    loaded.load_state_dict(torch.load(file, weights_only=True), strict=True)
    return loaded


@pytest.mark.parametrize("through", [copy.deepcopy, via_pickle, via_torch_save, via_state_dict])
def test_a_copy_of_a_pruned_model_has_the_zeros_and_the_keys(through: Callable[[nn.Module], nn.Module]) -> None:
    model = Net().eval()
    keys = list(model.state_dict())
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned = bits(model)
    other = through(model).eval()
    assert list(other.state_dict()) == keys
    assert bits(other) == pruned
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(other(x), model(x))
    elastic.restore()
    assert bits(model) == before
    assert bits(other) == pruned, "the copy lives its own life"
    again = pof.Elastic(other)
    again.prune(0.9)
    again.restore()
    assert bits(other) == pruned


def test_the_state_dict_does_not_grow() -> None:
    def size(model: nn.Module) -> int:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return file.getbuffer().nbytes

    model = Net()
    before = size(model)
    pof.Elastic(model).prune(0.7)
    assert size(model) == before


def test_export_of_a_pruned_model() -> None:
    model = Net().eval()
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned = bits(model)
    x = torch.randn(2, 3, 6, 6)
    program = torch.export.export(model, (x,))
    assert bits(model) == pruned, "export alters nothing"
    assert int((program.state_dict["fc.weight"] == 0).sum()) == 21
    torch.testing.assert_close(program.module()(x), model(x))


def test_two_elastics_take_turns() -> None:
    """Each sees what the other does as somebody else's change, unless that was undone."""
    model = Net()
    before = bits(model)
    raw, unit = pof.Elastic(model), pof.Elastic(model, magnitudes="unit")
    raw.prune(0.5)
    with pytest.raises(pof.WeightsChangedError):
        unit.prune(0.5)
    raw.restore()
    unit.refresh()
    unit.prune(0.5)
    with pytest.raises(pof.WeightsChangedError):
        raw.prune(0.9)
    unit.restore()
    raw.prune(0.9)
    raw.restore()
    assert bits(model) == before


BAD_SETTINGS: dict[str, dict[str, Any]] = {
    "scope='row'": {"scope": "row"},
    "magnitudes='unit-norm'": {"magnitudes": "unit-norm"},
    "include='nothing*'": {"include": "nothing*"},
    "exclude='classifier'": {"exclude": ["classifier"]},
    "sparsities='head'": {"sparsities": {"head": 0.5}},
    "sparsities['fc']=50": {"sparsities": {"fc": 50}},
}


@pytest.mark.parametrize("words", BAD_SETTINGS)
def test_bad_settings_are_one_line(words: str) -> None:
    with pytest.raises(pof.PofError) as caught:
        pof.Elastic(Net(), **BAD_SETTINGS[words])
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", [None, 3, Net])
def test_what_is_no_model_is_one_line(model: Any) -> None:
    with pytest.raises(pof.PofError, match=r"model is .*: pass a torch\.nn\.Module"):
        pof.Elastic(model)
