"""`pof.attach` with closures, accumulated gradients and a GradScaler: the loss form in every kind of step."""

import copy
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attached_training import (
    OPTIMIZERS,
    SETTINGS,
    STEPS,
    Batch,
    assert_same,
    batches,
    halves,
    loss_form,
    sgd,
)
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import pof
from tests.small_models import assert_bit_equal, tanh_convnet

# Closures


def train_by_closure(model: nn.Module, optimizer: Any, how: str, data: Iterable[Batch]) -> list[Any]:
    """Each step is given a closure that clears the gradients and computes them again, as Lightning does."""
    returned = []
    for x, y in data:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        returned.append(optimizer.step(closure) if how == "position" else optimizer.step(closure=closure))
    return returned


@pytest.mark.parametrize("how", ["position", "keyword"])
@pytest.mark.parametrize("name", ["sgd", "adam fused"])
def test_a_closure_is_wrapped(name: str, how: str) -> None:
    model = tanh_convnet()
    optimizer = OPTIMIZERS[name](model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    train_by_closure(model, optimizer, how, batches())
    assert attached.step == STEPS
    assert_same(model, loss_form(OPTIMIZERS[name]))


def test_a_closures_loss_includes_the_penalty() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    (x, y), penalty = batches(1)[0], pof.Penalty(model, **SETTINGS)
    expected = (F.cross_entropy(model(x), y) + penalty(0)).item()
    (loss,) = train_by_closure(model, optimizer, "position", [(x, y)])
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_a_closure_may_return_a_plain_number() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    for x, y in batches():

        def closure(x: Tensor = x, y: Tensor = y) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.item()

        optimizer.step(closure)
    assert_same(model, loss_form())


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_calls_its_closure_many_times(search: str | None) -> None:
    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, line_search_fn=search)

    model, other = tanh_convnet(), tanh_convnet()
    optimizer, plain = make(model.parameters()), make(other.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    train_by_closure(model, optimizer, "position", batches(3))
    penalty, sphere = pof.Penalty(other, **SETTINGS), pof.Sphere(other)
    for step, (x, y) in enumerate(batches(3)):

        def closure(step: int = step, x: Tensor = x, y: Tensor = y) -> Tensor:
            plain.zero_grad()
            loss = F.cross_entropy(other(x), y) + penalty(step)
            loss.backward()
            return loss

        plain.step(closure)
        sphere.project()
    assert attached.step == 3, "a step is a step, however often it looks at the loss"
    assert_same(model, other)


def test_a_closure_without_gradients_leaves_the_model_alone() -> None:
    """Lightning's closure for a batch that `training_step` skipped: gradients cleared, None returned."""
    model = tanh_convnet()
    optimizer = SGD(model.parameters(), lr=0.2)
    pof.attach(model, optimizer, **SETTINGS)
    before = copy.deepcopy(model)
    assert optimizer.step(lambda: optimizer.zero_grad()) is None
    assert_bit_equal(model, before)


def test_a_closure_that_forgets_to_return_its_loss_still_gets_the_penalty() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    for x, y in batches():

        def closure(x: Tensor = x, y: Tensor = y) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()

        optimizer.step(closure)
    assert_same(model, loss_form())


# Gradient accumulation


def test_accumulated_gradients_get_the_penalty_once_a_step() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    for i, (x, y) in enumerate(halves(batches())):
        (F.cross_entropy(model(x), y) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert attached.step == STEPS
    assert_same(model, loss_form())


# GradScaler


def scaled_steps(model: nn.Module, optimizer: Optimizer, data: Iterable[Batch], unscale: bool = False) -> list[bool]:
    """Train under a GradScaler; a batch with an inf overflows. Returns which steps left the weights as they were."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    still = []
    for x, y in data:
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        still.append(all(torch.equal(value, before[name]) for name, value in model.state_dict().items()))
    return still


AMP = ["sgd", "sgd fused", "adam", "adam fused"]


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("name", AMP)
def test_the_penalty_is_not_scaled_down_by_a_grad_scaler(name: str, unscale: bool) -> None:
    model = tanh_convnet()
    optimizer = OPTIMIZERS[name](model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    scaled_steps(model, optimizer, batches(), unscale)
    assert_same(model, loss_form(OPTIMIZERS[name]))


@pytest.mark.parametrize("name", AMP)
def test_a_step_that_overflows_is_skipped_and_not_counted(name: str) -> None:
    good = batches()
    overflow = (torch.full_like(good[0][0], float("inf")), good[0][1])
    model = tanh_convnet()
    optimizer = OPTIMIZERS[name](model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    still = scaled_steps(model, optimizer, [*good[:2], overflow, *good[2:]])
    assert attached.step == STEPS
    assert_same(model, loss_form(OPTIMIZERS[name]))
    assert still == [False, False, True, False, False, False, False], "a skipped step changes not a bit"
