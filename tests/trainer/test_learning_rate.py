import math

import pytest

from pof.trainer.learning_rate import learning_rate
from pof.trainer.recipe import OptimizerRecipe


def rates(steps: int = 40, per_epoch: int = 4, **settings: object) -> list[float]:
    recipe = OptimizerRecipe(learning_rate=0.8, **settings)
    return [learning_rate(recipe, step, steps, per_epoch) for step in range(steps)]


def test_cosine_falls_from_the_rate_to_zero() -> None:
    found = rates(schedule="cosine")
    assert found[0] == 0.8
    assert found[20] == pytest.approx(0.4)
    assert found[39] == pytest.approx(0.4 * (1 + math.cos(math.pi * 39 / 40)))


def test_restarts_begin_anew_every_period() -> None:
    found = rates(schedule="restarts", period=5.0)
    assert found[:20] == pytest.approx(found[20:])
    assert found[10] == pytest.approx(0.4)


def test_steps_take_a_tenth_every_period() -> None:
    found = rates(schedule="steps", period=5.0)
    assert found == pytest.approx([0.8] * 20 + [0.08] * 20)


def test_constant_with_a_warm_up() -> None:
    found = rates(schedule="constant", warmup=2.0)
    assert found[:9] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.8])
    assert set(found[9:]) == {0.8}


def test_cosine_after_a_warm_up_still_ends_at_zero() -> None:
    found = rates(schedule="cosine", warmup=1.0)
    assert found[3] == pytest.approx(0.8)
    assert found[4] == pytest.approx(0.8)
    assert found[22] == pytest.approx(0.4)
