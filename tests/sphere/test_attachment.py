"""`pof.attach` is the loss form, it trains the weights that it should, and refuses bad arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from attached_training import OPTIMIZERS, SETTINGS, assert_same, batches, loss_form, plain_steps, sgd, with_attach
from torch import nn
from torch.optim import SGD

import pof
from pof.errors import PofError
from tests.small_models import assert_bit_equal, tanh_convnet

# The loss form


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_attach_is_the_loss_form(name: str) -> None:
    make = OPTIMIZERS[name]
    model = with_attach(make)
    assert_same(model, loss_form(make))
    plain = tanh_convnet()
    plain_steps(plain, make(plain.parameters()), batches())
    assert not torch.allclose(model[2].weight, plain[2].weight, atol=1e-3), "without the penalty it is another model"


def test_without_the_sphere_too() -> None:
    model = with_attach(sphere=False)
    assert_same(model, loss_form(sphere=False))
    assert not torch.allclose(model[2].weight, with_attach()[2].weight, atol=1e-3)


def test_one_tr_needs_no_steps() -> None:
    constant = with_attach(tr=0.6, steps=None)
    assert_bit_equal(constant, with_attach(tr=(0.6, 0.6), steps=3))
    assert not torch.equal(constant[2].weight, with_attach(tr=0.7, steps=None)[2].weight)


def test_a_weight_that_the_loss_does_not_reach_still_gets_the_penalty() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "idle": nn.Linear(4, 4)})
    optimizer = SGD(model.parameters(), lr=0.1)
    pof.attach(model, optimizer, **SETTINGS)
    before = model["idle"].weight.detach().clone()
    model["used"](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(model["idle"].weight, before)


def test_half_precision_follows_the_loss_form_to_its_own_precision() -> None:
    models = [tanh_convnet().bfloat16() for _ in range(2)]
    optimizers = [SGD(model.parameters(), lr=0.05) for model in models]
    penalty, sphere = pof.Penalty(models[1], **SETTINGS), pof.Sphere(models[1])
    pof.attach(models[0], optimizers[0], **SETTINGS)
    for step, (x, y) in enumerate(batches(3)):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.bfloat16()).float(), y)
            (loss + penalty(step) if model is models[1] else loss).backward()
            optimizer.step()
        sphere.project()
    assert models[0][2].weight.dtype is torch.bfloat16
    for left, right in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0.02, atol=4e-3)


def channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)


def transposed_in_memory(model: nn.Module) -> None:
    for layer in (model[2], model[4], model[6]):
        layer.weight = nn.Parameter(layer.weight.data.transpose(0, 1).contiguous().transpose(0, 1))


def with_gaps(model: nn.Module) -> None:
    for layer in (model[2], model[4], model[6]):
        layer.weight = nn.Parameter(layer.weight.data.repeat_interleave(2, dim=1)[:, ::2])


@pytest.mark.parametrize("lay_out", [channels_last, transposed_in_memory, with_gaps])
def test_the_layout_in_memory_makes_no_difference(lay_out: Callable[[nn.Module], None]) -> None:
    model = tanh_convnet()
    lay_out(model)
    strides = [p.stride() for p in model.parameters()]
    assert strides != [p.stride() for p in tanh_convnet().parameters()]
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches())
    assert [p.stride() for p in model.parameters()] == strides
    assert_same(model, loss_form())


def test_what_to_log_is_that_of_the_last_step() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(2))
    penalty = pof.Penalty(model, **SETTINGS)
    expected = penalty(2).item()
    plain_steps(model, optimizer, batches(1))
    assert attached.step == 3
    assert float(attached.value) == pytest.approx(expected, rel=1e-6)
    assert attached.penalty.mean_cosine == pytest.approx(penalty.mean_cosine, rel=1e-6)
    assert attached.penalty.layers().keys() == {"2.weight", "4.weight", "6.weight"}


# What is trained, and what is left alone


def test_frozen_weights_are_left_alone() -> None:
    model = tanh_convnet()
    model[4].weight.requires_grad_(False)
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(2))
    assert model[4].weight.grad is None
    assert torch.equal(model[4].weight, tanh_convnet()[4].weight)
    assert attached.penalty.layers().keys() == {"2.weight", "6.weight"}


def test_weights_that_the_optimizer_does_not_hold_get_no_gradient_from_the_penalty() -> None:
    model, plain = tanh_convnet(), tanh_convnet()
    optimizers = [sgd([*m[2].parameters(), *m[6].parameters()]) for m in (model, plain)]
    pof.attach(model, optimizers[0], **SETTINGS)
    plain_steps(model, optimizers[0], batches(1))
    plain_steps(plain, optimizers[1], batches(1))
    assert torch.equal(model[4].weight.grad, plain[4].weight.grad)
    assert torch.equal(model[4].weight, plain[4].weight)
    assert not torch.equal(model[2].weight.grad, plain[2].weight.grad)


def test_globs_choose_what_is_trained_with_the_method() -> None:
    model, plain = tanh_convnet(), tanh_convnet()
    attached = pof.attach(model, optimizer := sgd(model.parameters()), exclude="6", **SETTINGS)
    plain_steps(model, optimizer, batches(1))
    plain_steps(plain, sgd(plain.parameters()), batches(1))
    assert torch.equal(model[6].weight, plain[6].weight)
    assert attached.sphere is not None
    assert attached.sphere.state_dict().keys() == {"2.weight", "4.weight"}


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "unfrozen"])
def test_freezing_and_unfreezing_while_attached_is_the_loss_form(freeze: bool) -> None:
    """Gradual unfreezing: the optimiser holds all weights, some of them take part for a part of the training."""
    model, other = tanh_convnet(), tanh_convnet()
    optimizers = [sgd(m.parameters()) for m in (model, other)]
    for m in (model, other):
        m[4].weight.requires_grad_(freeze)
    pof.attach(model, optimizers[0], **SETTINGS)
    penalty, sphere = pof.Penalty(other, **SETTINGS), pof.Sphere(other)
    for step, batch in enumerate(batches(4)):
        if step == 2:
            for m in (model, other):
                m[4].weight.requires_grad_(not freeze)
        plain_steps(model, optimizers[0], [batch])
        optimizers[1].zero_grad()
        (F.cross_entropy(other(batch[0]), batch[1]) + penalty(step)).backward()
        optimizers[1].step()
        sphere.project()
    assert_same(model, other)


def test_weights_that_are_given_to_the_optimizer_later_join() -> None:
    """Lightning's `BaseFinetuning` unfreezes layers by adding a group to the optimiser."""
    model, other = tanh_convnet(), tanh_convnet()
    optimizers = [sgd([*m[2].parameters(), *m[6].parameters()]) for m in (model, other)]
    pof.attach(model, optimizers[0], **SETTINGS)
    for m, optimizer in zip((model, other), optimizers, strict=True):
        optimizer.add_param_group({"params": list(m[4].parameters())})
    pof.attach(other, optimizers[1], **SETTINGS)
    plain_steps(model, optimizers[0], batches(2))
    plain_steps(other, optimizers[1], batches(2))
    assert_bit_equal(model, other)


def test_a_step_with_everything_frozen_changes_nothing() -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    model[:6].requires_grad_(False)
    model[6].weight.requires_grad_(False)
    plain_steps(model, optimizer, batches(1))
    unequal = [n for n, p in tanh_convnet().named_parameters() if not torch.equal(p, model.get_parameter(n))]
    assert unequal == ["6.bias"]


def test_two_optimizers_share_a_model() -> None:
    model = tanh_convnet()
    optimizers = [sgd(model[:4].parameters()), sgd(model[4:].parameters())]
    for optimizer in optimizers:
        pof.attach(model, optimizer, **SETTINGS)
    for x, y in batches():
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same(model, with_attach())


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tr": 70}, r"tr=70 must be in \[0, 1\): pass 0.7"),
        ({"tr": (0.9, 1.0)}, r"tr=1\.0 must be in \[0, 1\)"),
        ({"tr": -0.1}, r"tr=-0\.1 must be in"),
        ({"tr": float("nan")}, "tr=nan must be in"),
        ({"tr": "0.9"}, "tr='0.9' must be a number"),
        ({"tr": (0.9, 0.8, 0.7)}, "must be one number or a pair"),
        ({"tr": 0.0}, r"must be in \(0, 1\)"),
        ({"steps": None}, "steps=None must be the number of optimiser steps"),
        ({"steps": 0}, "steps=0 must be .* 1 or more"),
        ({"steps": 10.5}, r"steps=10\.5 must be"),
        ({"weight": -1}, "weight=-1 must be .*0 or more"),
        ({"weight": float("nan")}, "weight=nan must be .*0 or more"),
        ({"weight": float("inf")}, "weight=inf must be"),
        ({"weight": "0.1"}, "weight='0.1' must be"),
        ({"refresh": 0}, "refresh=0 must be .* 1 or more"),
        ({"include": "nope"}, "include='nope' matches no weight"),
        ({"exclude": "nope"}, "exclude='nope' matches no weight"),
    ],
    ids=str,
)
def test_a_bad_argument_is_an_error_that_names_it_and_attaches_nothing(arguments: dict[str, Any], message: str) -> None:
    model, plain = tanh_convnet(), tanh_convnet()
    optimizer = sgd(model.parameters())
    with pytest.raises(PofError, match=message):
        pof.attach(model, optimizer, **{**SETTINGS, **arguments})
    plain_steps(model, optimizer, batches(1))
    plain_steps(plain, sgd(plain.parameters()), batches(1))
    assert_bit_equal(model, plain)


def test_weights_that_are_not_finite_attach_nothing() -> None:
    model = tanh_convnet()
    with torch.no_grad():
        model[2].weight[0] = float("nan")
    optimizer = sgd(model.parameters())
    with pytest.raises(PofError, match=r"weight '2\.weight' holds NaN or inf"):
        pof.attach(model, optimizer, **SETTINGS)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_the_optimizer_of_another_model_is_an_error() -> None:
    with pytest.raises(PofError, match="trains no weight of the plan"):
        pof.attach(tanh_convnet(), sgd(tanh_convnet().parameters()), **SETTINGS)


@pytest.mark.parametrize("optimizer", [None, "sgd", torch.optim.SGD])
def test_what_is_no_optimizer_is_an_error(optimizer: Any) -> None:
    with pytest.raises(PofError, match=r"pass a torch\.optim\.Optimizer"):
        pof.attach(tanh_convnet(), optimizer, **SETTINGS)
