"""Winograd's convolutions against a plain loop, forward and backward; what does not fit is left to torch."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from pof.trainer import winograd
from pof.trainer.recipe import recipe_from
from pof.trainer.run import run_recipe
from pof.trainer.winograd import fits, is_there, winograd_convolutions

pytestmark = pytest.mark.skipif(not is_there(), reason="no compiled core, or no AVX2")
LAST, ONES = torch.channels_last, torch.ones(16)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def tensors(images: int, ins: int, outs: int, height: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    shapes = (images, ins, height, width), (outs, ins, 3, 3), (images, outs, height, width)
    x, weight, gradient = (torch.randn(shape).to(memory_format=torch.channels_last) for shape in shapes)
    return x.requires_grad_(), weight.requires_grad_(), gradient


def by_hand(x: Tensor, weight: Tensor) -> Tensor:
    images, _, height, width = x.shape
    padded = F.pad(x, (1, 1, 1, 1))
    out = torch.zeros(images, len(weight), height, width, dtype=x.dtype)
    for row, column in product(range(height), range(width)):
        patch = padded[:, :, row : row + 3, column : column + 3]
        out[:, :, row, column] = torch.einsum("ncij,ocij->no", patch, weight)
    return out


def largest_error(found: Tensor, wanted: Tensor) -> float:
    return float(((found.double() - wanted).abs().max() / wanted.abs().max()).detach())


# One tile; tiles that do not fill a block; more than one block; unequal channels and sides; one image and several.
SHAPES = [(1, 16, 16, 4, 4), (3, 16, 48, 8, 4), (2, 32, 16, 12, 20), (5, 16, 16, 16, 16), (2, 128, 128, 4, 8)]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_convolution(shape: tuple[int, ...], threads: int) -> None:
    x, weight, gradient = tensors(*shape)
    wanted = by_hand(x.double(), weight.double())
    wanted_gradients = torch.autograd.grad(wanted, (x, weight), gradient.double())
    with winograd_convolutions():
        found = F.conv2d(x, weight, padding=1)
        gradients = torch.autograd.grad(found, (x, weight), gradient)
    assert "_Convolution" in str(found.grad_fn)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert largest_error(found, wanted) < 2e-5
    for each, other in zip(gradients, wanted_gradients, strict=True):
        assert each.shape == other.shape
        assert largest_error(each, other) < 1e-4


def test_an_example_that_can_be_checked_in_the_head() -> None:
    x = torch.ones(1, 16, 4, 4).to(memory_format=torch.channels_last)
    with winograd_convolutions():
        found = F.conv2d(x, torch.ones(16, 16, 3, 3), padding=1)
    wanted = 16 * torch.tensor([[4.0, 6, 6, 4], [6, 9, 9, 6], [6, 9, 9, 6], [4, 6, 6, 4]])
    torch.testing.assert_close(found[0, 5], wanted, rtol=1e-5, atol=0)


@pytest.mark.parametrize("needed", ["x", "weight"])
def test_only_the_gradient_that_is_wanted(needed: str) -> None:
    x, weight, gradient = tensors(2, 16, 16, 8, 8)
    x.requires_grad_(needed == "x")
    weight.requires_grad_(needed == "weight")
    with winograd_convolutions():
        F.conv2d(x, weight, padding=1).backward(gradient)
    assert (x.grad is None, weight.grad is None) == (needed != "x", needed != "weight")
    found = x.grad if needed == "x" else weight.grad
    assert found is not None
    x.grad = weight.grad = None
    F.conv2d(x, weight, padding=1).backward(gradient)
    wanted = x.grad if needed == "x" else weight.grad
    assert wanted is not None
    assert largest_error(found, wanted.double()) < 1e-4


def test_gradients_in_another_layout() -> None:
    x, weight, gradient = tensors(2, 16, 16, 8, 8)
    layouts = (gradient.contiguous(), gradient[:, :1].expand(2, 16, 8, 8), torch._neg_view(gradient))
    by_torch = F.conv2d(x, weight, padding=1)
    with winograd_convolutions():
        found = F.conv2d(x, weight, padding=1)
    for layout in layouts:
        wanted = torch.autograd.grad(by_torch, (x, weight), layout, retain_graph=True)
        gradients = torch.autograd.grad(found, (x, weight), layout, retain_graph=True)
        for each, other in zip(gradients, wanted, strict=True):
            assert largest_error(each, other.double()) < 1e-4


def test_weights_in_another_layout() -> None:
    x, weight, _ = tensors(2, 16, 32, 8, 8)
    wide = torch.randn(32, 32, 3, 3)
    for layout in (weight.detach().contiguous(), wide[:, ::2], weight.detach().flip(3), torch._neg_view(wide)[:, :16]):
        with winograd_convolutions():
            found = F.conv2d(x, layout, padding=1)
        assert "_Convolution" in str(found.grad_fn)
        assert largest_error(found, F.conv2d(x.double(), layout.double(), padding=1)) < 2e-5


@pytest.mark.parametrize(
    ("x", "weight", "others"),
    [
        (torch.ones(1, 8, 8, 8).to(memory_format=LAST), torch.ones(16, 8, 3, 3), {"padding": 1}),
        (torch.ones(1, 16, 6, 8).to(memory_format=LAST), torch.ones(16, 16, 3, 3), {"padding": 1}),
        (torch.ones(1, 16, 8, 8).to(memory_format=LAST), torch.ones(16, 16, 5, 5), {"padding": 1}),
        (torch.ones(1, 16, 8, 8).to(memory_format=LAST), torch.ones(16, 16, 3, 3), {"padding": 0}),
        (torch.ones(1, 16, 8, 8).to(memory_format=LAST), torch.ones(16, 16, 3, 3), {"padding": "same"}),
        (torch.ones(1, 16, 8, 8).to(memory_format=LAST), torch.ones(16, 16, 3, 3), {"padding": 1, "stride": 2}),
        (torch.ones(1, 32, 8, 8).to(memory_format=LAST), torch.ones(32, 16, 3, 3), {"padding": 1, "groups": 2}),
        (torch.ones(1, 16, 8, 8).to(memory_format=LAST), torch.ones(16, 16, 3, 3), {"padding": 1, "bias": ONES}),
        (torch.ones(1, 16, 8, 8), torch.ones(16, 16, 3, 3), {"padding": 1}),
        (torch.ones(1, 16, 8, 8).to(memory_format=LAST).double(), torch.ones(16, 16, 3, 3).double(), {"padding": 1}),
        (torch.ones(1, 144, 8, 8).to(memory_format=LAST), torch.ones(16, 144, 3, 3), {"padding": 1}),
        (torch.ones(16, 8, 8), torch.ones(16, 16, 3, 3), {"padding": 1}),
        (torch.ones(0, 16, 8, 8).to(memory_format=LAST), torch.ones(16, 16, 3, 3), {"padding": 1}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_left_to_torch(x: Tensor, weight: Tensor, others: dict[str, Any]) -> None:
    assert not fits(x, weight, **others)
    with winograd_convolutions():
        found = F.conv2d(x, weight, **others)
    assert torch.equal(found, F.conv2d(x, weight, **others))


def test_errors_and_keywords_are_those_of_torch() -> None:
    x, weight, _ = tensors(1, 16, 16, 8, 8)
    with winograd_convolutions():
        assert "_Convolution" not in str(F.conv2d(input=x, weight=weight, padding=1).grad_fn)
        with pytest.raises(RuntimeError, match="channels"):
            F.conv2d(x, torch.ones(16, 32, 3, 3), padding=1)
        with torch.autocast("cpu", torch.bfloat16):
            assert F.conv2d(x, weight, padding=1).dtype is torch.bfloat16


class Marked(Tensor):
    """A tensor that is more than one."""


def test_what_is_no_plain_tensor_is_left_to_torch() -> None:
    x, weight, _ = tensors(1, 16, 16, 8, 8)
    assert not fits(x.detach().as_subclass(Marked), weight, padding=1)
    assert not fits(torch._neg_view(x.detach()), weight, padding=1)
    with FakeTensorMode() as fake, winograd_convolutions():
        assert F.conv2d(fake.from_tensor(x), fake.from_tensor(weight), padding=1).shape == x.shape
    with winograd_convolutions():
        vmapped = torch.vmap(lambda image: F.conv2d(image[None], weight, padding=1)[0])(x)
        slopes = torch.func.grad(lambda image: F.conv2d(image, weight, padding=1).sum())(x)
    torch.testing.assert_close(vmapped, F.conv2d(x, weight, padding=1))
    torch.testing.assert_close(slopes, torch.autograd.grad(F.conv2d(x, weight, padding=1).sum(), x)[0])


@pytest.mark.parametrize("inside", ["autocast", "float64", "meta"])
def test_what_is_set_around_it_does_not_matter(inside: str) -> None:
    x, weight, gradient = tensors(2, 16, 16, 8, 8)
    wanted = torch.autograd.grad(F.conv2d(x, weight, padding=1), (x, weight), gradient)
    with winograd_convolutions():
        found = F.conv2d(x, weight, padding=1)
        if inside == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                gradients = torch.autograd.grad(found, (x, weight), gradient)
        elif inside == "meta":
            with torch.device("meta"):
                gradients = torch.autograd.grad(F.conv2d(x, weight, padding=1), (x, weight), gradient)
        else:
            torch.set_default_dtype(torch.float64)
            try:
                gradients = torch.autograd.grad(F.conv2d(x, weight, padding=1), (x, weight), gradient)
            finally:
                torch.set_default_dtype(torch.float32)
    for each, other in zip(gradients, wanted, strict=True):
        assert each.dtype is torch.float32
        assert largest_error(each, other.double()) < 1e-4


def test_a_second_derivative_is_refused() -> None:
    x, weight, _ = tensors(1, 16, 16, 8, 8)
    with winograd_convolutions():
        found = F.conv2d(x, weight, padding=1).square().sum()
    (slope,) = torch.autograd.grad(found, x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_an_older_core_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winograd, "core", object)
    assert not is_there()


def test_a_network_learns_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    model.to(memory_format=torch.channels_last)
    x = torch.randn(4, 16, 8, 8).to(memory_format=torch.channels_last)

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(x).square().mean().backward()
        return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]

    wanted = gradients()
    with winograd_convolutions():
        found = gradients()
    for each, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-3, atol=1e-5)


def test_runs_use_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    convolve = winograd._convolve
    monkeypatch.setattr(winograd, "_convolve", lambda x, weight: calls.append(len(weight)) or convolve(x, weight))
    recipe = recipe_from(
        {
            "model": {"name": "digits_convnet"},
            "data": {"name": "digits", "batch": 64},
            "run": {"epochs": 1},
            "table": {"sparsities": [], "bands": []},
            "method": {"name": "dense"},
        }
    )
    outcome = run_recipe(recipe, tmp_path / "run")
    assert outcome.finished
    assert calls
    assert winograd_convolutions not in [type(mode) for mode in torch.overrides._get_current_function_mode_stack()]
