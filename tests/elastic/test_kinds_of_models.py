"""Tied, frozen, compiled and other models under an Elastic, with and without gradients."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pof
from tests.small_models import MixedNet, bits


@pytest.mark.parametrize("same_object", [True, False])
def test_tied_weights_stay_tied(same_object: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight if same_object else nn.Parameter(model[0].weight.detach())
    before = bits(model)
    elastic = pof.Elastic(model)
    assert [(row.name, row.weights) for row in elastic.layers()] == [("0.weight", 36)]
    for sp1, sp2 in ((0.5, 0.5), (0.25, 0.75), (0.0, 0.0)):
        elastic.recover(sp1, sp2)
        assert elastic.sparsity == sp1
        assert model[2].weight.data_ptr() == model[0].weight.data_ptr()
        assert torch.equal(model[2].weight, model[0].weight)
        assert (model[2].weight is model[0].weight) is same_object
    assert bits(model) == before


def test_weights_that_share_memory_in_another_shape() -> None:
    """An autoencoder whose decoder is the encoder's transpose: both are pruned, and dense again."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 6))
    model[1].weight = nn.Parameter(model[0].weight.detach().t())
    before = bits(model)
    for magnitudes in ("raw", "unit"):
        with pytest.warns(UserWarning, match=r"1\.weight is not pruned: it shares memory with 0\.weight"):
            elastic = pof.Elastic(model, magnitudes=magnitudes)
        for sparsity in (0.5, 0.75):
            elastic.prune(sparsity)
            assert elastic.sparsity == sparsity
            assert torch.equal(model[1].weight, model[0].weight.t())
        elastic.restore()
        assert bits(model) == before


def test_requires_grad_and_grad_are_untouched() -> None:
    model = MixedNet()
    model.fc.weight.requires_grad_(False)
    model(torch.randn(2, 3, 6, 6)).square().sum().backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    copies = {name: grad.clone() for name, grad in grads.items() if grad is not None}
    assert len(copies) == 9
    elastic = pof.Elastic(model, magnitudes="unit")
    for go in (lambda: elastic.prune(0.8), lambda: elastic.recover(0.1, 0.5), elastic.restore):
        go()
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad is (name != "fc.weight")
            assert parameter.grad is grads[name]
            assert parameter.grad_fn is None
    assert all(torch.equal(model.get_parameter(name).grad, copies[name]) for name in copies)  # type: ignore[arg-type]


def test_training_goes_on_from_a_pruned_model() -> None:
    model = MixedNet()
    pof.Elastic(model).prune(0.5)
    model(torch.randn(4, 3, 6, 6)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert bool(model.fc.weight.grad[model.fc.weight == 0].any()), "nothing masks the gradient"  # type: ignore[index]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("made_inside", [False, True])
def test_callers_without_gradients(context: Callable[[], Any], magnitudes: Any, made_inside: bool) -> None:
    """The Elastic is made, or first used, inside; then it is used outside, and the other way round."""
    model = MixedNet()
    before = bits(model)
    x = torch.randn(4, 3, 6, 6)
    elastic = None if made_inside else pof.Elastic(model, magnitudes=magnitudes)
    with context():
        if elastic is None:
            elastic = pof.Elastic(model, magnitudes=magnitudes)
        elastic.prune(0.5)
        elastic.calibrate([x])
        model(x)
        elastic.recover(0.2, 0.8)
        inside = bits(model)
    elastic.prune(0.6)
    elastic.calibrate([x])
    elastic.recover(0.2, 0.8)
    assert bits(model) == inside
    with context():
        elastic.prune(0.5)
        with elastic.at(0.9):
            model(x)
    model(x).sum().backward()
    assert model.fc.weight.grad is not None
    elastic.prune(0.7)
    elastic.restore()
    assert bits(model) == before


def test_surroundings_do_not_matter() -> None:
    plain, other = MixedNet(), MixedNet()
    other.load_state_dict(plain.state_dict())
    found: dict[nn.Module, list[object]] = {plain: [], other: []}
    for model, magnitudes in itertools.product((plain, other), ("raw", "unit")):
        elastic = pof.Elastic(model, magnitudes=magnitudes)  # type: ignore[arg-type]
        if model is other:
            torch.set_default_dtype(torch.float64)
        try:
            with torch.autocast("cpu", torch.bfloat16, enabled=model is other):
                elastic.recover(0.3, 0.7)
        finally:
            torch.set_default_dtype(torch.float32)
        found[model].append(bits(model))
        elastic.restore()
    assert found[plain] == found[other]


def test_a_model_made_under_inference_mode() -> None:
    with torch.inference_mode():
        model = MixedNet().eval()
        before = bits(model)
        elastic = pof.Elastic(model)
        elastic.prune(0.5)
        assert elastic.sparsity == 0.5
        elastic.calibrate([torch.randn(4, 3, 6, 6)])
        elastic.recover(0.2, 0.8)
        elastic.restore()
        assert bits(model) == before


@pytest.mark.parametrize("in_place", [False, True])
def test_compiled_models(in_place: bool) -> None:
    torch.compiler.reset()
    model = MixedNet().eval()
    keys = list(model.state_dict())
    x = torch.randn(2, 3, 6, 6)
    if in_place:
        model.compile(backend="eager")
        compiled: Any = model
    else:
        compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        dense = compiled(x)
        elastic = pof.Elastic(compiled)
        assert [row.name for row in elastic.layers()] == ["depthwise.weight", "up.weight", "fc.weight"]
        elastic.prune(0.7)
        pruned = compiled(x)
        assert torch.equal(pruned, model.forward(x))
        assert not torch.allclose(pruned, dense)
        elastic.restore()
        assert torch.equal(compiled(x), dense)
    assert list(model.state_dict()) == keys
