"""`with pof.pruned(model, s):` the gradients are those of the pruned weights, on the dense weights."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import prune as torch_prune

import pof
from tests.small_models import PLANNED, DropoutNet, bits, images_and_labels


def l1_pruned(weight: Tensor, sparsity: float) -> Tensor:
    """torch's own pruning of one weight."""
    layer = nn.Linear(1, 1)
    layer.weight = nn.Parameter(weight.detach().clone())
    return torch_prune.l1_unstructured(layer, "weight", sparsity).weight.detach()


def gradients_of(
    model: nn.Module, replaced: dict[str, Tensor], loss: Callable[[Tensor], Tensor], x: Tensor
) -> dict[str, Tensor]:
    """By hand: the model called with other weights, the gradient by what it was called with. Straight-through."""
    leaves = {
        name: replaced.get(name, parameter).detach().clone().requires_grad_()
        for name, parameter in model.named_parameters()
    }
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    output = functional_call(model, {**leaves, **buffers}, (x,))
    return dict(zip(leaves, torch.autograd.grad(loss(output), list(leaves.values())), strict=True))


def assert_gradients(model: nn.Module, expected: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_gradients_are_those_of_a_hand_made_pruned_forward(sparsity: float, training: bool) -> None:
    model = DropoutNet().train(training)
    x, y = images_and_labels()
    replaced = {name: l1_pruned(model.get_parameter(name), sparsity) for name in PLANNED if sparsity}
    expected = gradients_of(model, replaced, lambda output: F.cross_entropy(output, y), x)
    before = bits(model)
    with pof.pruned(model, sparsity):
        F.cross_entropy(model(x), y).backward()
    assert bits(model) == before
    assert_gradients(model, expected)
    if sparsity:
        dense = gradients_of(model, {}, lambda output: F.cross_entropy(output, y), x)
        assert not torch.allclose(expected["fc.weight"], dense["fc.weight"]), "the pruned pass is another one"


def test_pruned_weights_get_a_gradient_too() -> None:
    model = DropoutNet()
    x, y = images_and_labels()
    with pof.pruned(model, 0.8):
        zero = {name: model.get_parameter(name).detach() == 0 for name in PLANNED}
        F.cross_entropy(model(x), y).backward()
    assert {name: int(mask.sum()) for name, mask in zero.items()} == {
        "depthwise.weight": round(0.8 * 54),
        "up.weight": round(0.8 * 96),
        "fc.weight": 32,
    }
    for name, mask in zero.items():
        grad = model.get_parameter(name).grad
        assert grad is not None
        assert bool(grad[mask].any()), f"{name}: straight-through, so the gradient is dense"


@pytest.mark.parametrize("recover_from", [None, 0.25])
def test_masked_weights_get_no_gradient_from_inside(recover_from: float | None) -> None:
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0, 3.0, -4.0]]))
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    model(x).sum().backward()
    with pof.pruned(model, 0.75, recover_from=recover_from, masked=True):
        model(x).sum().backward()
    expected = [1.0, 2.0, 3.0, 8.0] if recover_from is None else [1.0, 4.0, 6.0, 8.0]
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [expected]
    with pof.pruned(model, 0.75):
        model(x).sum().backward()
    assert model.weight.grad.tolist() == [[a + b for a, b in zip(expected, x[0].tolist(), strict=True)]], "as before"


def test_the_mask_keeps_a_network_with_depthwise_filters_whole() -> None:
    """A filter that is pruned whole has a BatchNorm that divides by next to nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 1), nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8), nn.Flatten())
    x, wanted, sizes = torch.randn(16, 2, 5, 5), torch.randn(16, 72), []
    for masked in (False, True):
        model.zero_grad()
        with pof.pruned(model, 0.9, masked=masked):
            F.mse_loss(model(x), wanted).backward()
        assert model[1].weight.grad is not None
        sizes.append(float(model[1].weight.grad.abs().max()))
    assert sizes[0] > 20 * sizes[1]


def test_gradients_accumulate_over_a_dense_and_a_pruned_pass() -> None:
    model = DropoutNet()
    x, y = images_and_labels()
    loss: Callable[[Tensor], Tensor] = lambda output: F.cross_entropy(output, y)  # noqa: E731
    dense = gradients_of(model, {}, loss, x)
    pruned = gradients_of(model, {name: l1_pruned(model.get_parameter(name), 0.7) for name in PLANNED}, loss, x)
    F.cross_entropy(model(x), y).backward()
    with pof.pruned(model, 0.7):
        F.cross_entropy(model(x), y).backward()
    assert_gradients(model, {name: dense[name] + pruned[name] for name in dense})


OPTIONS: dict[str, dict[str, Any]] = {
    "band": {"recover_from": 0.3},
    "whole band": {"recover_from": 0.0},
    "global": {"scope": "global"},
    "unit": {"magnitudes": "unit"},
    "unit band": {"magnitudes": "unit", "recover_from": 0.2},
    "unit, global, band": {"magnitudes": "unit", "scope": "global", "recover_from": 0.2},
    "include": {"include": ("stem", "fc")},
    "include one": {"include": "fc.weight"},
    "exclude": {"exclude": ["up"]},
    "fixed": {"sparsities": {"fc": 0.1, "up": 0.0}},
    "fixed, global": {"sparsities": {"fc": 0.1}, "scope": "global"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_that_of_elastic(name: str) -> None:
    """The weights inside are those that an Elastic gives a copy, and the gradients are by them."""
    options = dict(OPTIONS[name])
    model = DropoutNet()
    x, y = images_and_labels()
    loss: Callable[[Tensor], Tensor] = lambda output: F.cross_entropy(output, y)  # noqa: E731
    other = copy.deepcopy(model)
    sp1 = options.pop("recover_from", 0.7)
    pof.Elastic(other, **options).recover(sp1, 0.7)
    expected = gradients_of(model, dict(other.named_parameters()), loss, x)
    before, inside = bits(model), bits(other)
    assert inside != before
    with pof.pruned(model, 0.7, **OPTIONS[name]):
        assert bits(model) == inside
        loss(model(x)).backward()
    assert bits(model) == before
    assert_gradients(model, expected)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_layouts_and_dtypes_come_back(layout: str, dtype: torch.dtype) -> None:
    model = DropoutNet().to(dtype)
    if layout == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before = bits(model)
    strides = [parameter.stride() for parameter in model.parameters()]
    x, y = images_and_labels()
    for magnitudes in ("raw", "unit"):
        with pof.pruned(model, 0.6, magnitudes=magnitudes):  # type: ignore[arg-type]
            assert int((model.fc.weight == 0).sum()) == 24
            F.cross_entropy(model(x.to(dtype)), y).backward()
    assert bits(model) == before
    assert [parameter.stride() for parameter in model.parameters()] == strides


@pytest.mark.parametrize("same_object", [True, False])
def test_tied_weights(same_object: bool) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    model[2].weight = model[0].weight if same_object else nn.Parameter(model[0].weight.detach())
    before = bits(model)
    x = torch.randn(4, 6)
    pruned = l1_pruned(model[0].weight, 0.5).requires_grad_()
    hidden = torch.tanh(F.linear(x, pruned, model[0].bias.detach()))
    second = pruned if same_object else pruned.detach().clone().requires_grad_()
    F.linear(hidden, second, model[2].bias.detach()).square().sum().backward()
    with pof.pruned(model, 0.5):
        assert torch.equal(model[0].weight, model[2].weight)
        model(x).square().sum().backward()
    assert bits(model) == before
    torch.testing.assert_close(model[0].weight.grad, pruned.grad)
    torch.testing.assert_close(model[2].weight.grad, second.grad)
    assert (model[2].weight is model[0].weight) is same_object


def test_frozen_weights_are_pruned_and_get_no_gradient() -> None:
    model = DropoutNet()
    model.up.requires_grad_(False)
    x, y = images_and_labels()
    with pof.pruned(model, 0.75):
        assert int((model.up.weight == 0).sum()) == 72
        F.cross_entropy(model(x), y).backward()
    assert model.up.weight.grad is None
    assert not model.up.weight.requires_grad
    assert model.fc.weight.grad is not None


def test_compiled_model() -> None:
    torch.compiler.reset()
    model = DropoutNet().eval()
    compiled: Any = torch.compile(model, backend="eager")
    x, y = images_and_labels()
    expected = gradients_of(
        model,
        {name: l1_pruned(model.get_parameter(name), 0.5) for name in PLANNED},
        lambda output: F.cross_entropy(output, y),
        x,
    )
    before = bits(model)
    with pof.pruned(compiled, 0.5):
        F.cross_entropy(compiled(x), y).backward()
    assert bits(model) == before
    assert_gradients(model, expected)


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("sparsity", [0.0, 0.01, 0.5])
def test_a_dense_graph_across_the_block_is_never_silently_wrong(sparsity: float, magnitudes: Any) -> None:
    """A forward before the block, and its backward inside, would use weights of the wrong kind."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(5, 4)
    expected = gradients_of(model, {}, lambda output: output.square().sum(), x)
    loss = model(x).square().sum()
    with pof.pruned(model, sparsity, magnitudes=magnitudes):
        try:
            loss.backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)  # noqa: PT017
        else:
            assert_gradients(model, expected)
