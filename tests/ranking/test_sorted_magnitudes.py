import numpy as np
import pytest
import torch
from torch import Tensor

from pof.ranking.cuts import Cut, find_cut
from pof.ranking.sorted_magnitudes import SMALLEST, SortedMagnitudes


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator())


def few_values(*shape: int) -> Tensor:
    """Seven magnitudes, zero among them: almost every cut falls between equals."""
    return torch.randint(-6, 7, shape, generator=generator()) / 7


WEIGHTS = {
    "normal": normal(SMALLEST + 1),
    "convolution": normal(128, 64, 3, 3) / 24,
    "channels_last": normal(128, 64, 3, 3).to(memory_format=torch.channels_last),
    "few values": few_values(300, 300),
    "two thirds zero": normal(300, 300) * (few_values(300, 300).abs() > 4 / 7),
    "all zero": torch.zeros(SMALLEST),
    "float16": normal(256, 256).half(),
    "float16 subnormal": (1e-6 * normal(256, 256)).half(),
    "bfloat16": normal(256, 256).bfloat16(),
    "many scales": normal(256, 256) * 10 ** (10 * normal(256, 1)),
    "every scale": torch.randint(0, 0x7F80_0000, (256, 256), generator=generator(), dtype=torch.int32).view(
        torch.float32
    ),
    "float64": normal(256, 256).double(),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_cut_is_the_one_that_a_search_finds(name: str) -> None:
    weight = WEIGHTS[name]
    n = weight.numel()
    ladder = SortedMagnitudes()
    counts = [0, 1, 2, n // 2, n - 2, n - 1, n, *torch.randint(0, n, (60,), generator=generator()).tolist()]
    zeros = int((weight == 0).sum())
    counts += [max(zeros - 1, 0), zeros, min(zeros + 1, n), *range(n - 300, n, 7)]
    for count in counts:
        assert ladder.cut(count, lambda: weight) == find_cut(weight, count), count
    assert ladder.nbytes <= 2 * n


def test_every_count_of_a_weight_without_ties() -> None:
    # Magnitudes at random scales, so that the runs of equal upper halves have all lengths.
    order = torch.randperm(SMALLEST, generator=generator())
    magnitudes = torch.arange(1, SMALLEST + 1, dtype=torch.float32).pow(3)
    signs = 2 * torch.randint(0, 2, (SMALLEST,), generator=generator()) - 1
    weight = (signs * magnitudes)[order]
    ladder = SortedMagnitudes()
    expected = [Cut(-1.0, 0), *(Cut(magnitude, SMALLEST) for magnitude in magnitudes[:-1].tolist())]
    assert [ladder.cut(count, lambda: weight) for count in range(SMALLEST)] == expected


def test_every_weight_of_one_tie_can_be_the_last_one_pruned() -> None:
    weight = torch.ones(SMALLEST)
    weight[::2] = -1
    ladder = SortedMagnitudes()
    for count in (1, 2, 3, 1000, SMALLEST - 1):
        assert ladder.cut(count, lambda: weight) == Cut(1.0, count)


def test_memory_is_two_bytes_a_weight() -> None:
    weight = normal(1000, 1000)
    ladder = SortedMagnitudes()
    assert ladder.nbytes == 0, "nothing is held before it is needed"
    ladder.cut(700_000, lambda: weight)
    assert 1.9 * weight.numel() < ladder.nbytes <= 2 * weight.numel()
    held = [value.nbytes for value in vars(ladder).values() if isinstance(value, np.ndarray)]
    assert sum(held) == ladder.nbytes, "what is reported is all that is held"


@pytest.mark.parametrize(
    "weight", [normal(SMALLEST - 1), normal(3), WEIGHTS["float64"]], ids=["almost", "tiny", "float64"]
)
def test_weights_that_are_searched_hold_nothing(weight: Tensor) -> None:
    ladder = SortedMagnitudes()
    for count in (0, 1, weight.numel() // 2, weight.numel()):
        assert ladder.cut(count, lambda: weight) == find_cut(weight, count)
    assert ladder.nbytes == 0
