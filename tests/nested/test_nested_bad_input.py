"""`pof.Nested`: callables and settings that cannot be used, copies, and errors on the way."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nested_models import HALF, batches, gradients, network
from torch import Tensor, nn

import pof
from pof.errors import PofError


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, x: "text", "the callable gave str: let it return the loss"),
        (lambda model, x: model(x), r"the callable gave Tensor of shape \(8, 5\): let it return the loss, one number"),
        (lambda model, x: (model(x).mean(), model(x), 1), "something else than a loss or"),
        (lambda model, x: (model(x).mean(), {"logits": 1}), "with logits as a tensor"),
        (lambda model, x: (model(x).mean(), model(x)), "the callable ran the model 2 times"),
        (lambda model, x: model(x).mean(), "teacher=True compares logits"),
        (lambda model, x: (torch.ones((), requires_grad=True), x), "the callable did not run the model"),
    ],
)
def test_a_callable_that_cannot_be_used(loss: Callable[[nn.Module, Tensor], Any], message: str) -> None:
    model, ((x, _),) = network(), batches(1)
    dense = copy.deepcopy(model.state_dict())
    with pytest.raises(PofError, match=message):
        pof.Nested(model, **HALF, teacher=True).backward(lambda: loss(model, x))
    for name, value in model.state_dict().items():
        assert torch.equal(value, dense[name]), name


def test_a_loss_that_was_computed_already_is_refused() -> None:
    model, ((x, y),) = network(), batches(1)
    with pytest.raises(PofError, match=r"loss is a Tensor: pass a callable .*nested.backward\(lambda"):
        pof.Nested(model).backward(F.cross_entropy(model(x), y))  # type: ignore[arg-type]


def test_a_copy_prunes_its_own_model_and_can_be_pickled() -> None:
    model, ((x, y),) = network(), batches(1)
    nested = pof.Nested(model, **HALF)
    nested.backward(lambda: F.cross_entropy(model(x), y))
    other, copied = copy.deepcopy((model, nested))
    zeros: list[tuple[int, int]] = []

    def loss() -> Tensor:
        zeros.append(tuple(int((net[5].weight == 0).sum()) for net in (model, other)))  # type: ignore[arg-type]
        return F.cross_entropy(other(x), y)

    copied.backward(loss)
    assert zeros == [(0, 0), (0, 240)]
    again = pickle.loads(pickle.dumps(nested))
    assert again.step == 1


def test_a_low_high_lowers_low_too() -> None:
    assert pof.Nested(network(), high=0.3).settings.low == 0.3


def test_an_error_in_the_second_pass_loses_no_gradients() -> None:
    model, ((x, y),) = network(), batches(1)
    nested, calls = pof.Nested(model, **HALF), []

    def loss() -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise MemoryError
        return F.cross_entropy(model(x), y)

    with pytest.raises(MemoryError):
        nested.backward(loss)
    wanted = copy.deepcopy(model)
    wanted.zero_grad()
    F.cross_entropy(wanted(x), y).backward()
    for one, other in zip(gradients(model), gradients(wanted), strict=True):
        assert torch.equal(one, other)


def test_settings_are_checked_at_once() -> None:
    with pytest.raises(PofError, match="high=90 must be in"):
        pof.Nested(network(), high=90)
    with pytest.raises(PofError, match=r"low=0.9 must not exceed high=0.5"):
        pof.Nested(network(), low=0.9, high=0.5)
    with pytest.raises(PofError, match="the most for scope='global'"):
        pof.Nested(network(), high=0.999, scope="global")
