"""The hypersphere: rows keep the norms that they had, whatever the optimiser does, and nothing else changes."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.errors import PofError


def small_convnet() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.BatchNorm2d(6),
        nn.ConvTranspose2d(6, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(4 * 5 * 5, 3),
    )


PLANNED = ("2.weight", "4.weight", "6.weight")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, after: Any = None, dtype: Any = None) -> None:
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 2, 6, 6, dtype=dtype)).square().mean().backward()
        optimizer.step()
        if after is not None:
            after()


def plain_rows(name: str, weight: Tensor) -> list[Tensor]:
    """Every row of a weight of `small_convnet`, flat, by plain indexing."""
    # Transposed, two groups: the inputs 0-2 make the outputs 0-1, the inputs 3-5 the outputs 2-3.
    if name == "4.weight":
        return [weight[inputs, out].flatten() for inputs in (slice(0, 3), slice(3, 6)) for out in range(2)]
    return [row.flatten() for row in weight]


def norms(model: nn.Module) -> list[Tensor]:
    return [row.norm() for name in PLANNED for row in plain_rows(name, model.get_parameter(name).detach())]


def make(optimizer: str, parameters: Any) -> torch.optim.Optimizer:
    if optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)
    # A large eps: a bias before BatchNorm has no gradient but rounding, of which Adam would make whole steps.
    return torch.optim.Adam(parameters, lr=0.05, eps=1e-3)


# What it does


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_norms_are_kept_through_training(optimizer: str) -> None:
    model = small_convnet()
    before, weights = norms(model), {name: p.detach().clone() for name, p in model.named_parameters()}
    stepper = make(optimizer, model.parameters())
    pof.Sphere(model).attach(stepper)
    train(model, stepper, 5)
    assert torch.allclose(torch.stack(norms(model)), torch.stack(before), rtol=1e-6, atol=0)
    assert all(not torch.equal(p, weights[name]) for name, p in model.named_parameters()), "everything trained"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_attach_is_the_plain_loop_that_rescales_row_by_row(optimizer: str) -> None:
    model = small_convnet()
    by_hand = copy.deepcopy(model)
    wanted = norms(by_hand)

    @torch.no_grad()
    def rescale() -> None:
        target = iter(wanted)
        for name in PLANNED:
            weight = by_hand.get_parameter(name)
            rows = [row * (next(target) / row.norm()) for row in plain_rows(name, weight)]
            if name == "4.weight":
                for i, inputs in enumerate((slice(0, 3), slice(3, 6))):
                    for out in range(2):
                        weight[inputs, out] = rows[2 * i + out].view(3, 2, 2)
            else:
                weight.copy_(torch.stack(rows).view_as(weight))

    attached = make(optimizer, model.parameters())
    pof.Sphere(model).attach(attached)
    train(model, attached, 4)
    train(by_hand, make(optimizer, by_hand.parameters()), 4, after=rescale)
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_project_by_hand_is_attach() -> None:
    model = small_convnet()
    other = copy.deepcopy(model)
    first, second = make("sgd", model.parameters()), make("sgd", other.parameters())
    pof.Sphere(model).attach(first)
    train(model, first, 3)
    train(other, second, 3, after=pof.Sphere(other).project)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_only_the_length_of_a_row_changes_not_its_direction() -> None:
    model = small_convnet()
    sphere = pof.Sphere(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for name in PLANNED:
            model.get_parameter(name).normal_()
    drawn = {name: model.get_parameter(name).detach().clone() for name in PLANNED}
    sphere.project()
    for name in PLANNED:
        for now, then in zip(plain_rows(name, model.get_parameter(name)), plain_rows(name, drawn[name]), strict=True):
            torch.testing.assert_close(now / now.norm(), then / then.norm())


def test_biases_the_first_convolution_and_what_is_excluded_are_free() -> None:
    model = small_convnet()
    sphere = pof.Sphere(model, exclude="6")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    tripled = {name: p.detach().clone() for name, p in model.named_parameters()}
    sphere.project()
    changed = [name for name, p in model.named_parameters() if not torch.equal(p, tripled[name])]
    assert changed == ["2.weight", "4.weight"]


def test_a_plan_made_before_is_taken() -> None:
    model = small_convnet()
    assert list(pof.Sphere(model, plan=pof.plan(model, include="6")).state_dict()) == ["6.weight"]


# What it leaves alone


def test_the_model_is_untouched_until_the_first_step() -> None:
    model = small_convnet().eval()
    inputs = torch.randn(4, 2, 6, 6)
    outputs, keys, kinds = model(inputs), list(model.state_dict()), [type(m) for m in model.modules()]
    sphere = pof.Sphere(model)
    sphere.attach(make("sgd", model.parameters()))
    assert torch.equal(model(inputs), outputs)
    sphere.project()
    assert torch.equal(model(inputs), outputs), "rows that are on their sphere keep their bits"
    assert list(model.state_dict()) == keys
    assert [type(m) for m in model.modules()] == kinds
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_parameters_stay_the_same_objects_in_the_same_memory() -> None:
    model = small_convnet()
    before = [(id(p), p.data_ptr(), p.requires_grad) for p in model.parameters()]
    optimizer = make("sgd", model.parameters())
    pof.Sphere(model).attach(optimizer)
    train(model, optimizer, 1)
    assert [(id(p), p.data_ptr(), p.requires_grad) for p in model.parameters()] == before


def test_channels_last_is_kept_and_gives_the_same_norms() -> None:
    model = small_convnet()
    before = norms(model)
    model.to(memory_format=torch.channels_last)
    strides = [p.stride() for p in model.parameters()]
    assert model[2].weight.is_contiguous(memory_format=torch.channels_last)
    sphere = pof.Sphere(model)
    with torch.no_grad():
        model[2].weight.mul_(2)
        model[4].weight.mul_(2)
    sphere.project()
    assert [p.stride() for p in model.parameters()] == strides
    torch.testing.assert_close(norms(model), before)


# Rows without a direction, weights without a number


def test_a_row_that_is_zero_at_the_start_is_left_free() -> None:
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight[1] = 0
    sphere = pof.Sphere(model)
    sphere.project()
    assert torch.equal(model.weight[1], torch.zeros(4))
    with torch.no_grad():
        model.weight[1] = torch.tensor([3.0, 0.0, 4.0, 0.0])
    sphere.project()
    assert torch.equal(model.weight[1], torch.tensor([3.0, 0.0, 4.0, 0.0]))


def test_a_row_that_becomes_zero_stays_zero() -> None:
    model = nn.Linear(4, 3)
    sphere, others = pof.Sphere(model), model.weight[1:].detach().clone()
    with torch.no_grad():
        model.weight[0] = 0
    sphere.project()
    assert torch.equal(model.weight[0], torch.zeros(4))
    assert torch.equal(model.weight[1:], others)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_an_error_that_names_the_weight(bad: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    with torch.no_grad():
        model[1].weight[2, 1] = bad
    with pytest.raises(PofError, match=r"weight '1\.weight' holds NaN or inf"):
        pof.Sphere(model)


def test_a_row_that_diverges_does_not_take_others_along() -> None:
    model = nn.Linear(4, 3)
    sphere, others = pof.Sphere(model), model.weight[1:].detach().clone()
    with torch.no_grad():
        model.weight[0] = float("nan")
        model.weight[1:] *= 2
    sphere.project()
    torch.testing.assert_close(model.weight[1:], others)


# Precision, devices, ties


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_norms_to_its_own_precision(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 8, bias=False, dtype=dtype)
    before = model.weight.detach().float().norm(dim=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    pof.Sphere(model).attach(optimizer)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(16, 64, dtype=dtype)).float().square().mean().backward()
        optimizer.step()
    assert model.weight.dtype is dtype
    torch.testing.assert_close(model.weight.detach().float().norm(dim=1), before, rtol=2e-3, atol=0)


def test_double_precision_is_kept_to_double_precision() -> None:
    model = small_convnet().double()
    before = norms(model)
    optimizer = make("adam", model.parameters())
    pof.Sphere(model).attach(optimizer)
    train(model, optimizer, 3, dtype=torch.float64)
    assert torch.allclose(torch.stack(norms(model)), torch.stack(before), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_converted_under_a_sphere_keeps_its_norms(dtype: torch.dtype) -> None:
    model = small_convnet()
    before = torch.stack(norms(model))
    sphere = pof.Sphere(model)
    model.to(dtype)
    with torch.no_grad():
        model[6].weight.mul_(2)
    sphere.project()
    assert model[6].weight.dtype is dtype
    torch.testing.assert_close(torch.stack(norms(model)).float(), before, rtol=1e-2, atol=0)


@pytest.fixture
def moving_keeps_parameters() -> Iterator[None]:
    """As between the CPU and a GPU: `model.to(device)` moves a parameter and does not replace it."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("moving_keeps_parameters")
def test_a_model_moved_under_a_sphere_does_not_crash() -> None:
    """The meta device stands for any other one: it has no numbers, but norms on the wrong device would raise."""
    model = nn.Linear(4, 4)
    sphere, weight = pof.Sphere(model), model.weight
    model.to("meta")
    assert model.weight is weight
    sphere.project()
    assert sphere.state_dict()["weight"].device.type == "meta"


def test_tied_weights_are_projected_once_and_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    sphere, before = pof.Sphere(model), model[0].weight.detach().norm(dim=1)
    with torch.no_grad():
        model[0].weight.mul_(5)
    sphere.project()
    assert list(sphere.state_dict()) == ["0.weight"]
    assert model[1].weight is model[0].weight
    torch.testing.assert_close(model[1].weight.detach().norm(dim=1), before)


# Attaching, removing, saving


def test_remove_sets_the_rows_free() -> None:
    model = small_convnet()
    optimizer = make("sgd", model.parameters())
    handle = pof.Sphere(model).attach(optimizer)
    train(model, optimizer, 1)
    on_the_sphere = torch.stack(norms(model))
    handle.remove()
    train(model, optimizer, 2)
    assert not torch.allclose(torch.stack(norms(model)), on_the_sphere, rtol=1e-4)


def test_weights_that_the_optimizer_does_not_train_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1)
    pof.Sphere(model).attach(optimizer)
    norm = model[0].weight.detach().norm(dim=1)
    with torch.no_grad():
        for layer in model:
            layer.weight.mul_(2)
    doubled = [layer.weight.detach().clone() for layer in model]
    optimizer.step()
    torch.testing.assert_close(model[0].weight.detach().norm(dim=1), norm)
    assert torch.equal(model[1].weight, doubled[1])
    assert torch.equal(model[2].weight, doubled[2])


def test_the_optimizer_of_another_model_is_an_error() -> None:
    sphere = pof.Sphere(small_convnet())
    with pytest.raises(PofError, match="trains no weight of the plan: pass the optimizer that was made for this model"):
        sphere.attach(make("sgd", small_convnet().parameters()))


@pytest.mark.parametrize("optimizer", [None, "sgd", nn.Linear(2, 2)])
def test_what_is_no_optimizer_is_an_error(optimizer: Any) -> None:
    with pytest.raises(PofError, match=r"pass a torch\.optim\.Optimizer"):
        pof.Sphere(nn.Linear(4, 4)).attach(optimizer)


def test_the_norms_survive_a_checkpoint(tmp_path: Any) -> None:
    model = small_convnet()
    before = norms(model)
    torch.save(pof.Sphere(model).state_dict(), tmp_path / "sphere.pt")
    with torch.no_grad():
        for name in PLANNED:
            model.get_parameter(name).mul_(4)
    sphere = pof.Sphere(model)
    sphere.load_state_dict(torch.load(tmp_path / "sphere.pt", weights_only=True))
    sphere.project()
    torch.testing.assert_close(norms(model), before)


def test_the_state_is_a_copy() -> None:
    model = nn.Linear(4, 4)
    sphere, before = pof.Sphere(model), model.weight.detach().clone()
    for norm in sphere.state_dict().values():
        norm.zero_()
    sphere.project()
    assert torch.equal(model.weight, before)


def test_norms_of_another_plan_are_refused() -> None:
    sphere = pof.Sphere(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    other = pof.Sphere(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))
    with pytest.raises(PofError, match=r"another plan: '1\.weight'"):
        sphere.load_state_dict(other.state_dict())


@pytest.mark.parametrize("width", [1, 6])
def test_norms_of_another_width_are_refused(width: int) -> None:
    with pytest.raises(PofError, match="weight"):
        pof.Sphere(nn.Linear(4, 4)).load_state_dict(pof.Sphere(nn.Linear(4, width)).state_dict())
