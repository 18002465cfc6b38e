"""Which weights an Elastic zeroes and fills: against torch's own pruning and plain slow loops."""

import itertools
import math
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
from tests.small_models import MixedNet, bits, planned


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
    # One weight of a layer always stays.
    low, high = (min(round(end * len(flat)), len(flat) - 1) for end in (sp1, sp2))
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
    # One weight of a layer always stays.
    low, high = (min(round(end * len(flat)), len(flat) - 1) for end in (sp1, sp2))
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


# --- against torch's own pruning ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sparsity", [0.005, 0.1, 0.5, 0.7, 0.9, 0.98])
def test_raw_is_l1_unstructured(sparsity: float) -> None:
    model, reference = MixedNet(), MixedNet()
    reference.load_state_dict(model.state_dict())
    pof.Elastic(model).prune(sparsity)
    for name in ("depthwise", "up", "fc"):
        module = getattr(reference, name)
        torch_prune.l1_unstructured(module, "weight", amount=sparsity)
        torch_prune.remove(module, "weight")
    assert same(planned(model), planned(reference))


@pytest.mark.parametrize("sparsity", [0.985, 0.99, 0.999])
def test_no_layer_is_emptied_and_the_others_lose_more(sparsity: float) -> None:
    model = MixedNet()
    elastic = pof.Elastic(model)
    elastic.prune(sparsity)
    rows = elastic.layers()
    assert all(row.zeros < row.weights for row in rows)
    wanted = sum(round(sparsity * row.weights) for row in rows)
    assert sum(row.zeros for row in rows) == min(wanted, sum(row.weights - 1 for row in rows))


@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.7, 0.9])
def test_raw_global_is_global_unstructured(sparsity: float) -> None:
    model, reference = MixedNet(), MixedNet()
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
    model = MixedNet()
    model.fc.to(torch.float16)
    model.up.to(torch.float64)
    before = bits(model)
    for scope, magnitudes in itertools.product(("layer", "global"), ("raw", "unit")):
        elastic = pof.Elastic(model, scope=scope, magnitudes=magnitudes)  # type: ignore[arg-type]
        elastic.recover(0.3, 0.8)
        assert elastic.sparsity == pytest.approx(0.3, abs=0.01)
        elastic.restore()
        assert bits(model) == before


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
