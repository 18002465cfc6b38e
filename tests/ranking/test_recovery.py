import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import pof.ranking.recovery
from pof.ranking.cuts import NO_CUT, find_cut
from pof.ranking.recovery import BLOCK, band_alpha, fill_band, recover, split_band

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    elements = draw(st.sampled_from([st.integers(-4, 4).map(float), st.floats(-8, 8, width=16)]))
    values = torch.tensor(draw(st.lists(elements, min_size=1, max_size=40)), dtype=torch.float64)
    return values.to(draw(st.sampled_from(DTYPES)))


@st.composite
def bands(draw: st.DrawFn, values: Tensor) -> tuple[int, int]:
    low, high = sorted(draw(st.tuples(*2 * [st.integers(0, values.numel())])))
    return low, high


def recovered(values: Tensor, low: int, high: int) -> tuple[Tensor, float]:
    """The weights with `low` zeros and a band from there to `high`, and alpha."""
    out = torch.full_like(values, math.nan)
    alpha = recover(values, find_cut(values, low), find_cut(values, high), out)
    return out, alpha


def by_loop(values: list[float], low: int, high: int) -> tuple[list[float], float]:
    """Eq. 5 and 6 word by word: zero up to `low`, alpha * sign up to `high`, and the rest as it is."""
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i))
    band = [values[i] for i in order[low:high] if values[i] != 0]
    alpha = float(sum(Fraction(abs(value)) for value in band) / len(band)) if band else 0.0
    result = list(values)
    for rank, i in enumerate(order):
        if rank < low:
            result[i] = 0.0
        elif rank < high:
            result[i] = alpha * ((values[i] > 0) - (values[i] < 0))
    return result, alpha


def test_by_hand() -> None:
    # Ten weights, band 30-70 %: 0.1, 0.2, 0.3 are pruned, 0.8, 0.9, 1.0 are kept, and between them
    # alpha = (0.4 + 0.5 + 0.6 + 0.7) / 4 = 0.55.
    values = torch.tensor([[0.1, -0.2, 0.8, -0.4, 0.5], [-0.6, 0.7, -0.3, 0.9, -1.0]], dtype=torch.float64)
    result, alpha = recovered(values, 3, 7)
    assert alpha == pytest.approx(0.55, rel=1e-15)
    expected = torch.tensor([[0.0, 0.0, 0.8, -0.55, 0.55], [-0.55, 0.55, 0.0, 0.9, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(result, expected, rtol=1e-15, atol=0)


def test_the_band_by_hand() -> None:
    values = torch.tensor([3.0, -1.0, 2.0, -4.0])
    kept, band = split_band(values, find_cut(values, 1), find_cut(values, 3))
    assert kept.tolist() == [0.0, 0.0, 0.0, -4.0]
    assert band.tolist() == [3.0, 0.0, 2.0, 0.0]
    assert band_alpha([band]) == 2.5
    assert band_alpha([band[:2], band[2:]]) == 2.5, "in parts as in one"


@settings(max_examples=250, deadline=None)
@given(data=st.data(), values=weights(), block=st.sampled_from([1, 3, 16, BLOCK]))
def test_recovery_is_the_plain_loop(data: st.DataObject, values: Tensor, block: int) -> None:
    low, high = data.draw(bands(values))
    before = values.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pof.ranking.recovery, "BLOCK", block)
        result, alpha = recovered(values, low, high)
    expected, expected_alpha = by_loop(values.tolist(), low, high)
    assert alpha == pytest.approx(expected_alpha, rel=1e-14)
    assert result.dtype == values.dtype
    # What is stored is alpha rounded once to the weights' precision, and everything else is exact.
    assert result.tolist() == torch.tensor(expected, dtype=torch.float64).to(values.dtype).tolist()
    assert torch.equal(values, before)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), values=weights())
def test_the_parts_do_not_overlap_and_make_up_the_weights(data: st.DataObject, values: Tensor) -> None:
    low, high = data.draw(bands(values))
    kept, band = split_band(values, find_cut(values, low), find_cut(values, high))
    assert not bool(((kept != 0) & (band != 0)).any())
    dropped = values - kept - band
    nonzero = int(torch.count_nonzero(values))
    zeros = values.numel() - nonzero
    assert int(torch.count_nonzero(dropped)) == max(low - zeros, 0)
    assert int(torch.count_nonzero(kept)) == min(values.numel() - high, nonzero)


@settings(max_examples=200, deadline=None)
@given(values=weights(), other=st.floats(-10, 10), nearby=st.sampled_from([-1e-6, -1e-9, 1e-9, 1e-6]))
@example(values=torch.tensor([1.0, -3.0, 0.0]), other=0.0, nearby=1e-9)
def test_alpha_is_the_closest_of_all(values: Tensor, other: float, nearby: float) -> None:
    alpha = band_alpha([values])
    signed = [(Fraction(value), (value > 0) - (value < 0)) for value in values.tolist() if value != 0]

    def distance(scale: float) -> Fraction:
        """||W' - scale * sign(W')||^2 without rounding."""
        return sum(((value - Fraction(scale) * sign) ** 2 for value, sign in signed), Fraction())

    if not signed:
        assert alpha == 0.0
        return
    assert alpha > 0
    assert distance(alpha) < distance(alpha * (1 + nearby))
    if abs(other - alpha) > 1e-9 * alpha:
        assert distance(alpha) < distance(other)


def test_zeros_in_the_band_stay_zero_and_do_not_count() -> None:
    values = torch.tensor([0.0, -0.0, 1.0, -3.0, 5.0])
    result, alpha = recovered(values, 0, 4)
    assert alpha == 2.0, "(1 + 3) / 2, not / 4"
    assert result.tolist() == [0.0, 0.0, 2.0, -2.0, 5.0]
    only_zeros, nothing = recovered(values, 0, 2)
    assert nothing == 0.0
    assert only_zeros.tolist() == values.tolist()


def test_an_empty_band_is_plain_pruning() -> None:
    values = torch.tensor([1.0, -3.0, 2.0])
    result, alpha = recovered(values, 2, 2)
    assert alpha == 0.0
    assert result.tolist() == [0.0, -3.0, 0.0]
    kept, band = split_band(values, NO_CUT, NO_CUT)
    assert torch.equal(kept, values)
    assert not band.any()
    assert band_alpha([]) == 0.0


def test_a_band_of_everything() -> None:
    result, alpha = recovered(torch.tensor([1.0, -3.0, 2.0]), 0, 3)
    assert alpha == 2.0
    assert result.tolist() == [2.0, -2.0, 2.0]


def test_a_known_alpha_is_taken_as_it_is() -> None:
    values, out = torch.tensor([1.0, -3.0, 2.0, 8.0]), torch.empty(4)
    assert recover(values, find_cut(values, 1), find_cut(values, 3), out, alpha=2.25) == 2.25
    assert out.tolist() == [0.0, -2.25, 2.25, 8.0]


def test_float16_is_summed_without_overflow_or_loss() -> None:
    # A float16 sum would overflow at 65,504.
    values = torch.full((4096,), 1000.0, dtype=torch.float16)
    values[::2] = -999.5
    result, alpha = recovered(values, 0, 4096)
    assert alpha == 999.75
    assert result.dtype is torch.float16
    assert result[:2].tolist() == [-1000.0, 1000.0], "999.75 lies between two float16 numbers; ties go to the even"
    # A float32 sum would lose the small terms.
    many = torch.full((2**18,), 2.0**-12)
    many[0] = 4096.0
    assert band_alpha([many]) == (4096 + (2**18 - 1) * 2.0**-12) / 2**18


@pytest.mark.parametrize("ties", [False, True])
def test_many_blocks_and_all_memory_layouts_agree(ties: bool) -> None:
    values = torch.randn(64, 130, 3, 3, generator=torch.Generator().manual_seed(0))
    if ties:
        values = (4 * values).round() / 4
    n = values.numel()
    assert n > BLOCK
    low, high = round(0.3 * n), round(0.7 * n)
    flat = values.flatten().double()
    order = flat.abs().argsort(stable=True)
    band = order[low:high]
    expected = flat.clone()
    expected[order[:low]] = 0
    alpha = float(flat[band].abs().sum() / flat[band].count_nonzero())
    expected[band] = alpha * flat[band].sign()
    layouts = {
        "contiguous": values,
        "channels_last": values.to(memory_format=torch.channels_last),
        "transposed": values.transpose(0, 1).contiguous().transpose(0, 1),
        "gaps": values.repeat_interleave(2, dim=-1)[..., ::2],
    }
    for name, source in layouts.items():
        for target in layouts.values():
            out = torch.full_like(target, math.nan)
            found = recover(source, find_cut(source, low), find_cut(source, high), out)
            assert found == pytest.approx(alpha, rel=1e-14), name
            assert torch.equal(out, expected.float().view_as(values)), name


def test_one_alpha_a_row() -> None:
    kept = torch.tensor([[5.0, 0.0], [0.0, -7.0]])
    band = torch.tensor([[0.0, -1.0], [2.0, 0.0]])
    result = fill_band(kept, band, torch.tensor([[0.5], [0.25]]))
    assert result.tolist() == [[5.0, -0.5], [0.25, -7.0]]
