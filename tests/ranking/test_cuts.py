import itertools
import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from pof.errors import PofError
from pof.ranking.cuts import NO_CUT, Cut, find_cut, keep_mask, zero_smallest
from pof.ranking.magnitude_bits import SUPPORTED_DTYPES, bits_to_magnitude, magnitude_bits
from pof.ranking.shares import GLOBAL_FLOOR, share_globally
from pof.ranking.sparsity import check_sparsity, prune_count

INTEGERS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32}
LAYOUTS = ("contiguous", "channels_last", "transposed", "every_second")

# A few values give many ties; the others are any number that fits into 16 bits, subnormals too.
TIED = st.sampled_from([-2.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 2.0, 2.0**-24, -(2.0**-24)])
ANY = st.floats(width=16, allow_nan=False, allow_infinity=False)
SPARSITIES = st.floats(0, 1, exclude_max=True)


def in_layout(values: Tensor, layout: str) -> Tensor:
    """The same numbers at the same indices, in another order in memory."""
    if layout == "channels_last" and values.dim() == 4:
        return values.contiguous(memory_format=torch.channels_last)
    if layout == "transposed" and values.dim() > 1:
        return values.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "every_second":
        return values.repeat_interleave(2, dim=-1)[..., ::2]
    return values.contiguous()


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    elements = draw(st.sampled_from([TIED, ANY, st.just(0.0), TIED | ANY]))
    size = math.prod(shape)
    values = torch.tensor(draw(st.lists(elements, min_size=size, max_size=size)), dtype=torch.float64)
    dtype = draw(st.sampled_from(SUPPORTED_DTYPES))
    return in_layout(values.view(shape).to(dtype), draw(st.sampled_from(LAYOUTS)))


def kept_by_loop(values: Tensor, count: int) -> list[bool]:
    """The rule, word by word: sort by magnitude, then by flat index, and prune the first `count`."""
    magnitudes = [abs(value) for value in values.flatten().tolist()]
    order = sorted(range(len(magnitudes)), key=lambda i: (magnitudes[i], i))
    pruned = set(order[:count])
    return [i not in pruned for i in range(len(magnitudes))]


def bits(values: Tensor) -> list[int]:
    """The bits of each number, so that 0.0 and -0.0 are told apart."""
    return values.flatten().contiguous().view(INTEGERS.get(values.dtype, torch.int64)).tolist()


def expected_bits(values: Tensor, kept: list[bool]) -> list[int]:
    return [bit if keep else 0 for bit, keep in zip(bits(values), kept, strict=True)]


@settings(max_examples=300, deadline=None)
@given(values=weights(), sparsity=SPARSITIES)
@example(values=torch.tensor([[3.0]]), sparsity=0.5)
@example(values=torch.tensor([[3.0]]), sparsity=0.51)
@example(values=torch.tensor([-0.0, 1.0, 0.0, -0.0, -1.0]), sparsity=0.6)
def test_the_rule_is_the_plain_loop(values: Tensor, sparsity: float) -> None:
    count = prune_count(values.numel(), sparsity)
    kept = kept_by_loop(values, count)
    before = bits(values)

    cut = find_cut(values, count)
    mask, zeroed = keep_mask(values, cut), zero_smallest(values, cut)

    assert mask.flatten().tolist() == kept
    assert int((~mask).sum()) == count
    assert zeroed.shape == mask.shape == values.shape
    assert zeroed.dtype == values.dtype
    assert bits(zeroed) == expected_bits(values, kept), "kept weights keep their bits, pruned ones are +0.0"
    assert bits(values) == before, "the weights themselves are not touched"


@settings(max_examples=100, deadline=None)
@given(values=weights(), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_writing_into_another_tensor(values: Tensor, layout: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, values.numel()))
    cut = find_cut(values, count)
    out = in_layout(torch.full_like(values, math.nan), layout)
    strides = out.stride()
    assert zero_smallest(values, cut, out=out) is out
    assert out.stride() == strides
    assert bits(out) == expected_bits(values, kept_by_loop(values, count))


@settings(max_examples=50, deadline=None)
@given(values=weights(), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_the_memory_layout_does_not_matter(values: Tensor, layout: str, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, values.numel()))
    assert find_cut(in_layout(values, layout), count) == find_cut(values, count)


@settings(max_examples=50, deadline=None)
@given(values=weights())
def test_sparser_states_nest(values: Tensor) -> None:
    masks = [keep_mask(values, find_cut(values, count)) for count in range(values.numel() + 1)]
    for denser, sparser in itertools.pairwise(masks):
        assert int(denser.sum()) - int(sparser.sum()) == 1
        assert bool((denser | ~sparser).all()), "what the sparser state keeps, the denser one keeps too"


def test_the_ends() -> None:
    values = torch.tensor([2.0, 0.0, -1.0])
    assert find_cut(values, 0) == NO_CUT
    assert bits(zero_smallest(values, NO_CUT)) == bits(values)
    assert keep_mask(values, NO_CUT).all()
    everything = find_cut(values, 3)
    assert bits(zero_smallest(values, everything)) == [0, 0, 0]
    assert not keep_mask(values, everything).any()


def test_a_cut_by_hand() -> None:
    values = torch.tensor([[1.0, -3.0, 1.0], [-1.0, 2.0, -0.0]])
    assert find_cut(values, 1) == Cut(0.0, 6), "no tie: everything of this magnitude goes"
    assert find_cut(values, 3) == Cut(1.0, 3), "two of the three ones go: those before index 3"
    assert zero_smallest(values, Cut(1.0, 3)).tolist() == [[0.0, -3.0, 0.0], [-1.0, 2.0, 0.0]]


@pytest.mark.parametrize("dtype", SUPPORTED_DTYPES)
def test_the_largest_and_the_smallest_numbers(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    smallest = torch.tensor([1], dtype=INTEGERS.get(dtype, torch.int64)).view(dtype).item()
    some = [info.max, smallest, -info.max, info.tiny, -smallest, 0.0, 2 * smallest, -info.tiny]
    # More than one vector register, so that both the vectorised loop and its tail are reached.
    values = torch.tensor(some * 9, dtype=dtype)
    for count in range(values.numel() + 1):
        cut = find_cut(values, count)
        kept = kept_by_loop(values, count)
        assert keep_mask(values, cut).tolist() == kept
        assert bits(zero_smallest(values, cut)) == expected_bits(values, kept)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_16_bit_number_ranks_by_its_magnitude(dtype: torch.dtype) -> None:
    values = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    values = values[values.isfinite()]
    as_integers = magnitude_bits(values)
    by_bits, by_magnitude = as_integers.argsort(stable=True), values.double().abs().argsort(stable=True)
    assert torch.equal(by_bits, by_magnitude)
    for i in range(0, len(values), 997):
        assert bits_to_magnitude(int(as_integers[i]), dtype) == abs(float(values[i]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("amount", [0.0, 0.1, 0.25, 0.5, 0.7, 0.999])
def test_the_masks_are_those_of_torchs_l1_unstructured(amount: float, layout: str) -> None:
    conv = nn.Conv2d(6, 5, 3)
    # Distinct magnitudes: where there are ties, torch's order is not defined.
    distinct = torch.randperm(conv.weight.numel(), generator=torch.Generator().manual_seed(0)) + 1.0
    distinct[::2] *= -1
    values = in_layout(distinct.view_as(conv.weight), layout)
    # Torch's own pruning takes no other layout.
    conv.weight = nn.Parameter(values.contiguous())
    prune.l1_unstructured(conv, "weight", amount=amount)
    mask = keep_mask(values, find_cut(values, prune_count(values.numel(), amount)))
    assert torch.equal(mask, conv.weight_mask.bool())


def test_prune_count_rounds_half_to_even() -> None:
    halves = {1: 0, 3: 2, 5: 2, 7: 4, 9: 4}
    assert {n: prune_count(n, 0.5) for n in halves} == halves
    assert prune_count(10, 0.05) == 0
    assert prune_count(10, 0.15) == 2
    assert prune_count(100, 0.29) == 29, "0.29 * 100 is 28.999..., which int() would cut to 28"


@settings(max_examples=100, deadline=None)
@given(weights=st.integers(1, 10**9), sparsity=SPARSITIES)
def test_prune_count_is_torchs(weights: int, sparsity: float) -> None:
    assert prune_count(weights, sparsity) == prune._compute_nparams_toprune(sparsity, weights)


@pytest.mark.parametrize(
    "value",
    [0, 0.0, 0.7, 0.999999, Fraction(1, 2), np.float64(0.25), np.float32(0.5), np.float16(0.5), np.int64(0)],
    ids=repr,
)
def test_good_sparsities(value: Any) -> None:
    checked = check_sparsity(value)
    assert type(checked) is float
    assert checked == value


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (70, "pass 0.7 for 70 %"),
        (2.5, "pass 0.025 for 2.5 %"),
        (100, "pass 0.7 for 70 %, 0.0 for dense"),
        (-0.1, "0.0 for dense"),
        (1.0, "1.0 would leave no weights; pass 0.99 for 99 %"),
        (1, "1.0 would leave no weights"),
        (np.float64(1.0), "1.0 would leave no weights"),
        (np.float32(-0.5), "0.0 for dense"),
        (math.nan, "pass 0.7 for 70 %"),
        (math.inf, "pass 0.7 for 70 %"),
        (-math.inf, "pass 0.7 for 70 %"),
        ("0.7", "a number"),
        (None, "a number"),
        (True, "a number"),
        (False, "a number"),
        (np.True_, "a number"),
        (0.5j, "a number"),
        ([0.7], "a number"),
    ],
)
def test_bad_sparsities_get_value_bound_and_remedy(value: Any, remedy: str) -> None:
    with pytest.raises(PofError) as caught:
        check_sparsity(value, "sp1")
    message = str(caught.value)
    assert message.startswith(f"sp1={value!r} must be ")
    assert "in [0, 1): " in message
    assert remedy in message
    assert "\n" not in message


def shares_by_loop(layers: list[Tensor], sparsity: float) -> list[int]:
    """All weights in one list by (magnitude, layer, index), but each layer's largest, which the floor protects."""
    candidates = []
    for number, layer in enumerate(layers):
        magnitudes = sorted(abs(value) for value in layer.flatten().tolist())
        protected = max(1, -(-len(magnitudes) // 100))
        candidates += [(magnitude, number) for magnitude in magnitudes[: len(magnitudes) - protected]]
    pruned = sorted(candidates)[: round(sparsity * sum(layer.numel() for layer in layers))]
    return [sum(number == layer for _, layer in pruned) for number in range(len(layers))]


def most(layers: list[Tensor]) -> int:
    return sum(layer.numel() - max(1, math.ceil(GLOBAL_FLOOR * layer.numel())) for layer in layers)


MODELS = st.lists(weights(), min_size=1, max_size=5)


@settings(max_examples=200, deadline=None)
@given(layers=MODELS, sparsity=SPARSITIES)
@example(layers=[torch.zeros(250), torch.ones(250)], sparsity=0.6)
@example(layers=[torch.ones(3), torch.ones(1), torch.ones(2, dtype=torch.float16)], sparsity=0.4)
@example(layers=[torch.tensor([1.0 + 1e-12, 9.0], dtype=torch.float64), torch.tensor([1.0, 2.0, 3.0])], sparsity=0.2)
def test_global_shares_are_the_plain_loop(layers: list[Tensor], sparsity: float) -> None:
    total = prune_count(sum(layer.numel() for layer in layers), sparsity)
    if total > most(layers):
        with pytest.raises(PofError, match="scope='layer'"):
            share_globally(layers, sparsity)
        return
    counts = share_globally(layers, sparsity)
    assert counts == shares_by_loop(layers, sparsity)
    assert sum(counts) == total


@settings(max_examples=100, deadline=None)
@given(layers=MODELS, ends=st.tuples(SPARSITIES, SPARSITIES))
def test_global_shares_never_fall_as_the_sparsity_grows(layers: list[Tensor], ends: tuple[float, float]) -> None:
    reach = most(layers) / sum(layer.numel() for layer in layers)
    low, high = (share_globally(layers, end * reach) for end in sorted(ends))
    assert all(fewer <= more for fewer, more in zip(low, high, strict=True))


def test_no_layer_is_emptied_however_small_its_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    tiny, single, large = (
        scale * torch.randn(n, generator=generator) for n, scale in ((1000, 1e-6), (1, 1e-9), (1500, 1))
    )
    counts = share_globally([tiny, single, large], 0.9)
    assert counts == [990, 0, 2251 - 990], "1 % of a layer stays, and of one weight the one"


def test_global_ties_go_to_the_first_layer() -> None:
    layers = [torch.ones(10), -torch.ones(10), torch.ones(10)]
    assert share_globally(layers, 12 / 30) == [9, 3, 0]
    assert share_globally(layers, 0.0) == [0, 0, 0]


@pytest.mark.parametrize("sizes", [(12345, 678), (12345,), (1001, 2002, 300_003)])
def test_too_much_for_the_floor_is_an_error_that_names_a_bound_which_works(sizes: tuple[int, ...]) -> None:
    layers = [torch.arange(float(size)) for size in sizes]
    with pytest.raises(PofError, match=r"sparsity=0\.99 is more than .* or use scope='layer'") as caught:
        share_globally(layers, 0.99)
    found = re.search(r"more than (\d\.\d+)", str(caught.value))
    assert found is not None
    bound = float(found[1])
    assert bound < 0.99, "'0.99 is more than 0.99' helps nobody"
    assert sum(share_globally(layers, bound)) == prune_count(sum(sizes), bound)
