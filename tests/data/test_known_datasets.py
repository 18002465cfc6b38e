"""What is known of a dataset before it is there is what it turns out to be."""

from typing import Any

import pytest

from pof.data import DATASETS
from pof.errors import PofError


@pytest.mark.parametrize("name", [name for name, known in DATASETS.items() if known.shape is not None])
def test_the_shape_that_is_told_is_that_of_the_images(name: str) -> None:
    known = DATASETS[name]
    try:
        data: Any = known()
    except PofError as error:
        pytest.skip(f"not on this machine: {str(error)[:60]}")
    assert data.shape == known.shape
    assert next(data.test_batches(1))[0].shape[1:] == known.shape


def test_settings_are_keys_of_a_recipe() -> None:
    from dataclasses import fields

    from pof.trainer.recipe import DataRecipe

    keys = {field.name for field in fields(DataRecipe)}
    assert {setting for known in DATASETS.values() for setting in known.settings} <= keys
