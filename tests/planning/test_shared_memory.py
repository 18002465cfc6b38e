"""Tied weights are one entry; those tied to an embedding are left out."""

from collections.abc import Callable

import pytest
import torch
from plan_reading import names
from torch import nn

import pof
from tests.small_models import LanguageModel


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))


def same_parameter(model: Tied) -> None:
    model.c.weight = model.a.weight


def same_storage(model: Tied) -> None:
    model.c.weight = nn.Parameter(model.a.weight.data)


@pytest.mark.parametrize("tie", [same_parameter, same_storage])
def test_tied_weights_are_one_entry_and_stay_tied(tie: Callable[[Tied], None]) -> None:
    model = Tied()
    tie(model)
    plan = pof.plan(model)
    assert [(entry.name, entry.tied) for entry in plan] == [("a.weight", ("c.weight",)), ("b.weight", ())]
    assert plan.weights == 32
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    assert model.a.weight.data_ptr() == model.c.weight.data_ptr()
    assert torch.count_nonzero(model.c.weight) == 8
    with torch.no_grad():
        model.a.weight.fill_(7)
    assert torch.equal(model.c.weight, model.a.weight)


def test_a_module_used_twice_is_one_entry_and_stays_one_module() -> None:
    model = Tied()
    model.c = model.a
    assert names(pof.plan(model)) == ["a.weight", "b.weight"]
    pof.Elastic(model).prune(0.5)
    assert model.c is model.a


def test_a_module_used_twice_answers_to_both_names() -> None:
    model = Tied()
    model.c = model.a
    assert names(pof.plan(model, exclude="c")) == ["b.weight"]
    assert names(pof.plan(model, include="c")) == ["a.weight"]


def test_equal_values_in_different_memory_are_not_tied() -> None:
    model = Tied()
    with torch.no_grad():
        model.c.weight.copy_(model.a.weight)
    assert len(pof.plan(model)) == 3


def test_two_views_of_one_storage_that_are_different_weights_are_not_tied() -> None:
    model, joint = Tied(), torch.rand(8, 4)
    model.a.weight, model.c.weight = nn.Parameter(joint[:4]), nn.Parameter(joint[4:])
    assert len(pof.plan(model)) == 3


def test_tied_weights_answer_to_both_names() -> None:
    model = Tied()
    same_parameter(model)
    assert names(pof.plan(model, exclude="c")) == ["b.weight"]
    assert names(pof.plan(model, include="c")) == ["a.weight"]
    assert [entry.sparsity for entry in pof.plan(model, sparsities={"c": 0.25})] == [0.25, None]


def test_a_convolution_tied_to_the_first_is_left_out_with_it() -> None:
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    assert names(pof.plan(model)) == ["2.weight"]


def test_a_weight_tied_to_an_embedding_is_left_out_with_a_notice() -> None:
    with pytest.warns(UserWarning, match=r"lm_head\.weight is not pruned: it is tied to an embedding"):
        plan = pof.plan(LanguageModel())
    assert names(plan) == ["body.weight"]
    assert [name for name, _ in plan.left_out] == ["lm_head.weight", "embedding.weight"]


def test_a_weight_that_is_left_out_goes_by_each_of_its_names() -> None:
    with pytest.warns(UserWarning, match=r"lm_head\.weight is not pruned"):
        plan = pof.plan(LanguageModel(), exclude="embedding")
    assert dict(plan.left_out)["embedding.weight"] == "excluded"


def test_a_weight_in_the_memory_of_an_embedding_is_left_out_too() -> None:
    model = LanguageModel()
    model.lm_head.weight = nn.Parameter(model.embedding.weight.data)
    with pytest.warns(UserWarning, match=r"lm_head\.weight is not pruned: it is tied to an embedding"):
        assert names(pof.plan(model)) == ["body.weight"]
