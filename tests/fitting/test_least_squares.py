"""Nested least squares against a plain solver, and at the edges."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pof.fitting.least_squares import damped, nested_least_squares, relative_errors


def problem(groups: int, rows: int, inputs: int, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Weights, products of correlated inputs, and nested masks, in float64."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(groups, rows, inputs, generator=generator, dtype=torch.float64)
    mixed = torch.randn(groups, inputs, inputs, generator=generator, dtype=torch.float64)
    columns = mixed @ torch.randn(groups, inputs, 8 * inputs, generator=generator, dtype=torch.float64)
    order = weights.abs().flatten(1).argsort(1).argsort(1).view_as(weights).double() / (rows * inputs)
    return weights, damped(columns @ columns.transpose(1, 2), 0.01), [order >= share for share in (0.0, 0.5, 0.8)]


def by_solver(weights: Tensor, gram: Tensor, kept: list[Tensor], shares: list[float]) -> Tensor:
    """The same row by row, with one linear system each."""
    found = weights.clone()
    for group in range(weights.shape[0]):
        for row in range(weights.shape[1]):
            system = torch.zeros_like(gram[group])
            right = torch.zeros_like(weights[group, row])
            for mask, share in zip(kept, shares, strict=True):
                on = mask[group, row].double()
                system += share * on[:, None] * gram[group] * on[None, :]
                right += share * on * (gram[group] @ weights[group, row])
            used = torch.stack([mask[group, row] for mask in kept]).any(0)
            found[group, row, used] = torch.linalg.solve(system[used][:, used], right[used])
    return found


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 7), st.integers(0, 10_000))
def test_it_is_what_a_solver_finds(groups: int, rows: int, inputs: int, seed: int) -> None:
    weights, gram, kept = problem(groups, rows, inputs, seed)
    shares = [2.0, 1.0, 0.5]
    found = nested_least_squares(weights, gram, kept, shares, iterations=60)
    torch.testing.assert_close(found, by_solver(weights, gram, kept, shares), rtol=1e-6, atol=1e-6)


def test_by_hand() -> None:
    """Two equal inputs: the weight that stays takes over the one that goes."""
    weights = torch.tensor([[[3.0, 1.0]]], dtype=torch.float64)
    gram = torch.ones(1, 2, 2, dtype=torch.float64)
    kept = [torch.tensor([[[True, False]]])]
    found = nested_least_squares(weights, gram, kept, [1.0], iterations=3)
    assert found.flatten().tolist() == pytest.approx([4.0, 1.0])
    fitted, plain = relative_errors([found * kept[0], weights * kept[0]], weights, gram)
    assert fitted == pytest.approx(0.0, abs=1e-12)
    assert plain == pytest.approx(1 / 16)


def test_it_lowers_the_error_of_every_state_together() -> None:
    weights, gram, kept = problem(2, 8, 24, 3)
    found = nested_least_squares(weights, gram, kept, [1.0, 1.0, 1.0], iterations=30)
    before = sum(relative_errors([weights * mask for mask in kept], weights, gram))
    assert sum(relative_errors([found * mask for mask in kept], weights, gram)) < 0.9 * before


def test_edges() -> None:
    """No weight kept, no input ever on, weights of zero: nothing becomes NaN."""
    zeros = torch.zeros(1, 2, 3)
    nothing = torch.zeros(1, 2, 3, dtype=torch.bool)
    weights = torch.randn(1, 2, 3)
    silent = damped(torch.zeros(1, 3, 3), 0.01)
    assert torch.equal(nested_least_squares(weights, silent, [nothing], [1.0]), weights)
    for each in (zeros, weights):
        found = nested_least_squares(each, silent, [~nothing, nothing], [1.0, 1.0])
        assert bool(torch.isfinite(found).all())
    assert relative_errors([weights], zeros, silent) == (0.0,)
