"""`RankedWeight` and `GlobalRanking` against plain loops: masks, states, alphas, shares, at all the edges."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pof.errors import PofError
from pof.ranking.ranked_weight import RankedWeight
from pof.ranking.row_layout import RowLayout
from pof.ranking.shares import GLOBAL_FLOOR, GlobalRanking, LayerSize, band_counts, share_alike, share_globally
from pof.ranking.sparsity_state import pruned_state, recovered_state

ROWS = RowLayout()


def smallest(values: Tensor, count: int) -> set[int]:
    """The flat indices of the `count` smallest magnitudes, ties by index: a plain loop."""
    flat = values.reshape(-1).tolist()
    return set(sorted(range(len(flat)), key=lambda i: (abs(flat[i]), i))[:count])


ints = st.lists(st.integers(-4, 4), min_size=1, max_size=40)


@settings(deadline=None)
@given(ints, st.data())
def test_counts_are_exact_with_ties_and_zeros(numbers: list[int], data: st.DataObject) -> None:
    values = torch.tensor(numbers, dtype=torch.float32).reshape(1, -1)
    count = data.draw(st.integers(0, len(numbers)))
    for many in (False, True):
        ranked = RankedWeight(values, ROWS, many_states=many)
        kept = ranked.kept(count)
        assert int(kept.sum()) == len(numbers) - count
        assert {i for i, keep in enumerate(kept.reshape(-1).tolist()) if not keep} == smallest(values, count)
        out = torch.full_like(values, 9.0)
        assert ranked.write((count, count), out) == 0.0
        assert torch.equal(out, values * kept)


@settings(deadline=None)
@given(ints, st.data())
def test_a_band_is_alpha_times_sign(numbers: list[int], data: st.DataObject) -> None:
    values = torch.tensor(numbers, dtype=torch.float32).reshape(1, -1)
    low = data.draw(st.integers(0, len(numbers)))
    high = data.draw(st.integers(low, len(numbers)))
    ranked, out = RankedWeight(values, ROWS), torch.empty_like(values)
    found = ranked.write((low, high), out)
    flat, band = values.reshape(-1).tolist(), smallest(values, high) - smallest(values, low)
    filled = [abs(flat[i]) for i in band if flat[i]]
    alpha = sum(filled) / len(filled) if filled else 0.0
    assert found == pytest.approx(alpha if low < high else 0.0)
    assert ranked.alpha((low, high)) == pytest.approx(alpha)
    for i, value in enumerate(out.reshape(-1).tolist()):
        if i in smallest(values, low):
            assert value == 0.0
        elif i in band:
            assert value == pytest.approx(math.copysign(alpha, flat[i]) if flat[i] else 0.0)
        else:
            assert value == flat[i]


def test_by_hand() -> None:
    ranked = RankedWeight(torch.tensor([[0.5, -1.0, 2.0, -4.0]]), ROWS)
    out = torch.empty(1, 4)
    assert ranked.write((1, 3), out) == 1.5
    assert out.tolist() == [[0.0, -1.5, 1.5, -4.0]]
    assert ranked.ordered_magnitudes().tolist() == [0.5, 1.0, 2.0, 4.0]
    assert ranked.size == 4


@pytest.mark.parametrize("groups", [None, 2], ids=["rows first", "rows second"])
def test_unit_rows_keep_their_norms_and_are_scaled_to_compare(groups: int | None) -> None:
    layout, weight = RowLayout(groups), torch.randn(4, 6, 3, 3)
    ranked = RankedWeight(weight, layout, "unit")
    rows, dims = layout.rows(weight)
    norms = rows.double().square().sum(dims, keepdim=True).sqrt()
    assert ranked.norms is not None
    assert ranked.norms.shape == layout.norms_shape(tuple(weight.shape))
    torch.testing.assert_close(ranked.norms, norms.float())
    across = ranked.keys_across()
    torch.testing.assert_close(across.square().mean(), torch.tensor(1.0))
    out = torch.empty_like(weight)
    ranked.write((100, 100), out)
    assert int((out == 0).sum()) == 100
    found = layout.rows(out)[0].double().square().sum(dims, keepdim=True).sqrt()
    torch.testing.assert_close(found.float(), norms.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "transposed"])
def test_types_and_memory_layouts(dtype: torch.dtype, layout: str) -> None:
    weight = torch.randn(6, 5, 3, 3).to(dtype)
    plain = RankedWeight(weight, ROWS)
    if layout == "channels_last":
        weight = weight.to(memory_format=torch.channels_last)
    elif layout == "transposed":
        weight = weight.transpose(0, 1).contiguous().transpose(0, 1)
    ranked = RankedWeight(weight, ROWS)
    for count in (0, 1, 100, 269, 270):
        assert torch.equal(ranked.kept(count), plain.kept(count))


def test_it_does_not_touch_its_values() -> None:
    values = torch.randn(3, 50)
    before = values.clone()
    ranked = RankedWeight(values, ROWS, "unit")
    for counts in ((0, 0), (10, 10), (10, 90), (150, 150)):
        ranked.write(counts, torch.empty_like(values))
    assert torch.equal(values, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_by_name(value: float) -> None:
    with pytest.raises(PofError, match=r"weight 'layer.weight' holds NaN or inf"):
        RankedWeight(torch.tensor([[1.0, value]]), ROWS, name="layer.weight")


@settings(deadline=None, max_examples=60)
@given(st.lists(ints, min_size=1, max_size=5), st.integers(0, 99))
def test_a_global_ranking_gives_the_same_sorted_once_or_searched(layers: list[list[int]], percent: int) -> None:
    keys, sparsity = [torch.tensor(layer, dtype=torch.float32) for layer in layers], percent / 100
    sizes = [len(layer) for layer in layers]
    most = [size - max(1, math.ceil(GLOBAL_FLOOR * size)) for size in sizes]
    many = GlobalRanking(keys, many=True)
    total = round(sparsity * sum(sizes))
    assert many.reaches(sparsity) == (total <= sum(most))
    if total > sum(most):
        for ranking in (many, GlobalRanking(keys)):
            with pytest.raises(PofError, match="the most for scope='global'"):
                ranking.counts(sparsity)
        return
    # A plain loop: rank what each layer may lose, by magnitude, then by layer.
    places = sorted(
        (abs(value), number) for number, layer in enumerate(layers) for value in sorted(layer, key=abs)[: most[number]]
    )
    wanted = [sum(number == own for _, number in places[:total]) for own in range(len(layers))]
    assert many.counts(sparsity) == wanted
    assert share_globally(keys, sparsity) == wanted


def test_fixed_sparsities_are_the_upper_end_of_a_band() -> None:
    layers = [LayerSize(10), LayerSize(10, fixed=0.5)]
    assert band_counts(layers, None, pruned_state(0.8)) == [(8, 8), (5, 5)]
    assert band_counts(layers, None, recovered_state(0.3, 0.8)) == [(3, 8), (3, 5)]
    assert band_counts(layers, None, recovered_state(0.6, 0.8)) == [(6, 8), (5, 5)]
    assert band_counts(layers, None, pruned_state(0.0)) == [(0, 0), (0, 0)]


sizes = st.lists(st.integers(1, 12) | st.integers(1, 300), min_size=1, max_size=6)


@settings(deadline=None, max_examples=300)
@given(sizes, st.lists(st.integers(0, 999) | st.sampled_from([500, 750, 875, 900]), min_size=2, max_size=8))
def test_no_layer_is_emptied_and_sparser_states_nest(sizes: list[int], thousandths: list[int]) -> None:
    layers = [LayerSize(size) for size in sizes]
    before = [0] * len(layers)
    for sparsity in sorted(number / 1000 for number in thousandths):
        counts = share_alike(layers, sparsity)
        assert all(count <= layer.most < layer.weights for count, layer in zip(counts, layers, strict=True))
        assert all(now >= then for now, then in zip(counts, before, strict=True)), "sparser states nest"
        if all(round(sparsity * layer.weights) <= layer.most for layer in layers):
            assert counts == [round(sparsity * layer.weights) for layer in layers]
        else:
            # Where the smallest layer rounds to all of its weights, the others have these.
            limit = 1 - Fraction(1, 2 * min(sizes))
            already = sum(min(round(limit * layer.weights), layer.most) for layer in layers)
            wanted = max(round(sparsity * sum(sizes)), already)
            assert sum(counts) == min(wanted, sum(layer.most for layer in layers)), "the zeros of the network stay"
        before = counts


def test_what_a_layer_cannot_lose_others_do() -> None:
    # The third layer keeps its only weight, so the largest loses one more.
    assert share_alike([LayerSize(20), LayerSize(10), LayerSize(1)], 0.9) == [19, 9, 0]
    assert share_alike([LayerSize(64), LayerSize(24), LayerSize(3)], 0.9) == [58, 22, 2], "82 of 91, as asked"
    assert share_alike([LayerSize(1), LayerSize(1)], 0.9) == [0, 0]
    assert share_alike([LayerSize(10**9), LayerSize(10**9 + 1), LayerSize(2)], 0.9)[2] == 1
