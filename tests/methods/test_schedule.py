"""The cubic schedule, when pruning is due, and what its settings refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pof.errors import PofError
from pof.methods.schedule import check_rise, check_shares, cubic, is_due, step_at

STEPS = st.integers(0, 2000)
SPARSITIES = st.floats(0.0, 0.99)


def test_the_cubic_by_hand() -> None:
    # From 0.5 to 0.9 over steps 10 to 14: what is left shrinks as (3/4)^3, (2/4)^3, (1/4)^3 of 0.4.
    assert [cubic(step, 10, 14, 0.5, 0.9) for step in range(9, 16)] == pytest.approx(
        [0.5, 0.5, 0.73125, 0.85, 0.89375, 0.9, 0.9], abs=1e-12
    )


@given(first=STEPS, length=STEPS, ends=st.tuples(SPARSITIES, SPARSITIES), steps=st.tuples(STEPS, STEPS))
def test_it_rises_from_one_end_to_the_other(
    first: int, length: int, ends: tuple[float, float], steps: tuple[int, int]
) -> None:
    (initial, final), (early, late) = sorted(ends), sorted(steps)
    last = first + length
    at_early, at_late = (cubic(step, first, last, initial, final) for step in (early, late))
    assert initial - 1e-12 <= at_early <= at_late + 1e-12 <= final + 2e-12
    assert cubic(last, first, last, initial, final) == final, "exactly, not nearly"


@given(first=STEPS, length=STEPS, every=st.integers(1, 3000))
def test_both_ends_are_due_whatever_the_distance(first: int, length: int, every: int) -> None:
    last = first + length
    assert is_due(first, first, last, every)
    assert is_due(last, first, last, every)
    assert not is_due(first - 1, first, last, every)
    assert not is_due(last + 1, first, last, every)


def test_due_steps_by_hand() -> None:
    assert [step for step in range(20) if is_due(step, 2, 12, 4)] == [2, 6, 10, 12]
    assert [step for step in range(20) if is_due(step, 2, 12, 100)] == [2, 12]
    assert [step for step in range(20) if is_due(step, 5, 5, 1)] == [5]


@given(share=st.floats(0.0, 1.0), steps=st.integers(1, 2000))
def test_a_share_of_a_run_is_a_step_of_it(share: float, steps: int) -> None:
    assert 0 <= step_at(share, steps) <= steps - 1
    assert abs(step_at(share, steps) - share * steps) <= 1


def test_settings_that_make_no_schedule_are_refused() -> None:
    check_rise(0.5, 0.5)
    check_shares(begin=0.0, end=1)
    with pytest.raises(PofError, match=r"initial=0\.9 must not exceed sparsity=0\.8"):
        check_rise(0.9, 0.8)
    with pytest.raises(PofError, match=r"initial=50 must be in \[0, 1\): pass 0\.5"):
        check_rise(50, 0.8)
    with pytest.raises(PofError, match=r"end=75 must be a share of the run"):
        check_shares(begin=0.0, end=75)
    with pytest.raises(PofError, match=r"begin='0' must be a share"):
        check_shares(begin="0", end=1.0)
    with pytest.raises(PofError, match=r"end=0\.2 must not come before begin=0\.5"):
        check_shares(begin=0.5, end=0.2)
