"""Globs for include, exclude and sparsities: what they match, and what is refused."""

from typing import Any

import pytest
from plan_reading import names
from torch import nn

import pof
from pof.errors import PlanError, PofError
from tests.small_models import Convnet

# Globs


@pytest.mark.parametrize(
    ("glob", "excluded"),
    [
        ("fc.weight", ["fc.weight"]),
        ("fc", ["fc.weight"]),
        ("layer1", ["layer1.0.weight", "layer1.2.weight"]),
        ("layer1.2", ["layer1.2.weight"]),
        ("layer*", ["layer1.0.weight", "layer1.2.weight", "layer2.0.weight"]),
        ("layer?.0", ["layer1.0.weight", "layer2.0.weight"]),
        ("layer[!1]", ["layer2.0.weight"]),
        ("*.2.weight", ["layer1.2.weight"]),
    ],
)
def test_globs_match_weights_modules_and_their_parents(glob: str, excluded: list[str]) -> None:
    everything = ["layer1.0.weight", "layer1.2.weight", "layer2.0.weight", "fc.weight"]
    assert names(pof.plan(Convnet(), exclude=(glob,))) == [name for name in everything if name not in excluded]
    assert names(pof.plan(Convnet(), include=(glob,))) == excluded


def test_globs_match_whole_names_and_their_case() -> None:
    model = nn.Sequential()
    model.fc, model.fc2, model.FC = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    assert names(pof.plan(model, include="fc")) == ["fc.weight"]


def test_include_takes_the_first_convolution_too() -> None:
    assert names(pof.plan(Convnet(), include=("stem", "fc"))) == ["stem.weight", "fc.weight"]
    assert len(pof.plan(Convnet(), include="*")) == 5


def test_exclude_wins_over_include() -> None:
    assert names(pof.plan(Convnet(), include="layer1", exclude="layer1.0")) == ["layer1.2.weight"]


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_string_is_one_glob_and_an_iterator_is_read_once(option: str) -> None:
    wanted = names(pof.plan(Convnet(), **{option: ("fc",)}))
    assert names(pof.plan(Convnet(), **{option: "fc"})) == wanted
    assert names(pof.plan(Convnet(), **{option: iter(["fc"])})) == wanted


@pytest.mark.parametrize("option", ["include", "exclude"])
@pytest.mark.parametrize("glob", ["fc1", "", "layer3.*", "bn"])
def test_a_glob_that_matches_nothing_is_an_error(option: str, glob: str) -> None:
    with pytest.raises(PlanError, match=r"matches no weight or module.* print\(pof\.plan\(model\)\) lists them") as e:
        pof.plan(Convnet(), **{option: ("layer1", glob)})
    assert f"{option}={glob!r}" in str(e.value)


def test_a_misspelt_glob_is_told_the_nearest_name() -> None:
    with pytest.raises(PlanError, match=r"the nearest name is 'layer1'"):
        pof.plan(Convnet(), exclude="layr1")


def test_everything_excluded_is_nothing_to_prune() -> None:
    with pytest.raises(PlanError, match="nothing to prune"):
        pof.plan(Convnet(), exclude="*")


# Sparsities of their own


def test_overrides_go_by_glob_and_the_last_one_counts() -> None:
    plan = pof.plan(Convnet(), sparsities={"layer*": 0.9, "layer1.2": 0, "fc.weight": 0.5})
    assert {entry.name: entry.sparsity for entry in plan} == {
        "layer1.0.weight": 0.9,
        "layer1.2.weight": 0.0,
        "layer2.0.weight": 0.9,
        "fc.weight": 0.5,
    }


def test_without_overrides_no_sparsity_is_fixed() -> None:
    assert {entry.sparsity for entry in pof.plan(Convnet(), sparsities={})} == {None}


@pytest.mark.parametrize("value", [70, -0.1, 1.0, float("nan"), "0.5", None, True])
def test_an_override_out_of_bounds_is_an_error_that_names_it(value: Any) -> None:
    with pytest.raises(PofError, match=r"sparsities\['fc'\]=.* must be .*\[0, 1\)") as caught:
        pof.plan(Convnet(), sparsities={"fc": value})
    assert repr(value) in str(caught.value)


def test_an_override_of_what_is_not_pruned_is_an_error() -> None:
    with pytest.raises(PlanError, match="sparsities='nope' matches no weight or module of the plan"):
        pof.plan(Convnet(), sparsities={"nope": 0.5})
    with pytest.raises(PlanError, match=r"sparsities='stem': .* takes no part .the first convolution.; include="):
        pof.plan(Convnet(), sparsities={"stem": 0.5})
