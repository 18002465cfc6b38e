"""Layers that the kernels reach by a detour: each has torch's outputs, and is fused with what follows it."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.core.library import core
from pof.runtime.call_inputs import CallInputs
from pof.runtime.capture import capture
from pof.runtime.compiled_model import CompiledModel
from pof.runtime.compiled_weights import CompiledWeights, tensors_of_model
from pof.runtime.program import Layer

pytestmark = [
    pytest.mark.skipif(core() is None, reason="the core was not built"),
    pytest.mark.usefixtures("_kernels_always"),
]


def lively(model: nn.Module) -> nn.Module:
    """In evaluation, pruned, with norms and biases that do something."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_floating_point():
            with torch.no_grad():
                value.uniform_(0.5, 1.5) if name.endswith("running_var") else value.normal_(std=0.4)
                if value.dim() > 1:
                    value.masked_fill_(torch.rand_like(value) < 0.8, 0.0)
    return model.eval()


def same(model: nn.Module, x: Tensor, fast: CompiledModel | None = None) -> CompiledModel:
    """Compare with torch, with every layer on the sparse kernels."""
    fast = fast or pof.compile(model, x)
    with torch.no_grad():
        wanted = model(x)
    for _ in range(2):
        torch.testing.assert_close(fast(x), wanted, rtol=1e-4, atol=1e-4)
    return fast


def engines(fast: CompiledModel) -> list[str]:
    return [row.engine for row in fast.times()]


def items(model: nn.Module, x: Tensor) -> list[str]:
    """What the program is made of."""
    return [
        "layer" if isinstance(item, Layer) else str(item.target) for item in capture(model, CallInputs((x,), {})).items
    ]


class InvertedResidual(nn.Module):
    """A block of EfficientNet: BatchNorm, then an activation in place, and an addition at the end."""

    def __init__(self, act: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), act(inplace=True))
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), act(inplace=True)
        )
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.project(self.depthwise(self.expand(x)))
        result += x
        return result


@pytest.mark.parametrize(("act", "name"), [(nn.SiLU, "aten.silu.default"), (nn.Hardswish, "aten.hardswish.default")])
def test_norms_before_activations_in_place_are_folded(act: Callable[..., nn.Module], name: str) -> None:
    model, x = lively(InvertedResidual(act)), torch.randn(3, 8, 9, 9)
    assert items(model, x) == ["layer", name, "layer", name, "layer"], "the addition is fused as well"
    assert engines(same(model, x)) == ["sparse"] * 3


def test_norms_are_folded_in_double_precision() -> None:
    model = lively(nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8)))
    conv, norm = model[0], model[1]
    program = capture(model, CallInputs((torch.randn(2, 8, 9, 9),), {}))
    spec = CompiledWeights.of(program, tensors_of_model(model)).specs[program.items[0].name]
    factor = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    weight = (conv.weight.double() * factor.reshape(-1, 1, 1, 1)).float()
    bias = ((conv.bias.double() - norm.running_mean.double()) * factor + norm.bias.double()).float()
    torch.testing.assert_close(torch.from_numpy(spec.weight), weight, rtol=1e-7, atol=0)
    torch.testing.assert_close(torch.from_numpy(spec.bias), bias, rtol=1e-7, atol=0)


def test_deep_networks_are_as_near_to_float64_as_torch_is() -> None:
    model = lively(nn.Sequential(*[InvertedResidual(nn.SiLU) for _ in range(6)]))
    x = torch.randn(2, 8, 9, 9)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        plain, compiled = ((run(x) - exact).abs().max() for run in (model, pof.compile(model, x)))
    assert compiled < 4 * plain + 1e-7 * exact.abs().max()


class Product(nn.Module):
    """The Conv1D of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(8, 12)), nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, 8), self.weight).view(*x.shape[:-1], 12) @ self.weight.t()


def test_products_with_weights_of_in_by_out() -> None:
    model, x = lively(Product()), torch.randn(2, 5, 8)
    fast = same(model, x)
    assert engines(fast) == ["sparse", "sparse"]
    same(model, torch.randn(7, 5, 8), fast)


def test_a_bias_that_is_broadcast_is_left_to_torch() -> None:
    model = Product()
    model.bias = nn.Parameter(torch.randn(1))
    assert engines(same(lively(model), torch.randn(2, 5, 8))) == ["sparse"], "the second product"
    rows = nn.Parameter(torch.randn(10, 12))
    model.bias = rows
    assert engines(same(lively(model), torch.randn(2, 5, 8))) == ["sparse"]


class Attention(nn.Module):
    """Queries, keys and values in one layer, with a bias that is joined at every call (EVA-02, BEiT, SwinV2)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias))
        return F.linear(x, self.qkv.weight, bias)


def test_joined_biases_are_folded_and_folded_again() -> None:
    model, x = lively(Attention()), torch.randn(2, 5, 8)
    assert items(model, x) == ["layer"]
    fast = same(model, x)
    assert [(row.name, row.engine) for row in fast.times()] == [("qkv", "sparse")]
    with torch.no_grad():
        model.q_bias += 3
    fast.update()
    same(model, x, fast)


def test_what_is_random_or_written_to_is_not_folded() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.register_buffer("steps", torch.zeros(8))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.steps += 1
            noise = torch.rand(8)
            return F.linear(x, self.fc.weight, self.steps * 2), noise

    fast = pof.compile(Noisy().eval(), torch.zeros(2, 8))
    (one, noise), (two, other) = fast(torch.zeros(2, 8)), fast(torch.zeros(2, 8))
    assert (two - one).tolist() == [[2.0] * 8] * 2
    assert not torch.equal(noise, other)


def block(dims: int, **settings: Any) -> nn.Sequential:
    conv, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv3d, nn.BatchNorm3d))[dims // 2]
    return nn.Sequential(conv(8, 8, **settings), norm(8), nn.ReLU(inplace=True), conv(8, 6, 1), nn.SiLU(inplace=True))


@pytest.mark.parametrize(
    "settings",
    [{"kernel_size": 3, "padding": 1}, {"kernel_size": 3}, {"kernel_size": 3, "stride": 2, "padding": 1},
     {"kernel_size": 1, "stride": 2}, {"kernel_size": 3, "padding": "same", "dilation": 2},
     {"kernel_size": 3, "padding": 1, "groups": 8}, {"kernel_size": 2, "padding": 2, "stride": 3}],
)  # fmt: skip
@pytest.mark.parametrize("dims", [1, 3])
def test_lines_and_volumes(dims: int, settings: dict[str, Any]) -> None:
    model = lively(block(dims, **settings))
    shape = (21,) if dims == 1 else (6, 9, 11)
    x = torch.randn(2, 8, *shape)
    assert items(model, x) == ["layer", "layer", "aten.silu.default"]
    fast = same(model, x)
    assert engines(fast) == ["sparse", "sparse"]
    same(model, torch.randn(17, 8, *shape), fast)


def test_volumes_with_settings_of_their_own() -> None:
    model = lively(
        nn.Sequential(nn.Conv3d(3, 8, (3, 5, 1), stride=(1, 2, 2), padding=(1, 2, 0)), nn.Conv3d(8, 4, (1, 3, 3)))
    )
    assert engines(same(model, torch.randn(2, 3, 5, 12, 12))) == ["sparse", "sparse"]


@pytest.mark.parametrize("dims", [1, 3])
def test_a_relu_that_one_of_two_users_has(dims: int) -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = block(dims, kernel_size=3, padding=1)[:2]
            self.other = block(dims, kernel_size=1)[0]

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.body(x)
            g = self.other(h)
            return g + h, F.relu(h), F.relu_(g)

    x = torch.randn(2, 8, *([7] * dims))
    same(lively(Fork()), x)


def test_additions_of_lines() -> None:
    class Lines(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv1d(8, 8, 3, padding=1), nn.Conv1d(8, 8, 5, padding=2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = F.relu(self.b(F.relu(self.a(x))) + x)
            return h.mean((-1, -2), keepdim=True), F.max_pool1d(self.a(h), 2)

    for batch in (1, 9):
        assert engines(same(lively(Lines()), torch.randn(batch, 8, 13))) == ["sparse"] * 3


def test_norms_of_inputs_without_a_batch_take_another_axis() -> None:
    class Unbatched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.conv(x))

    same(lively(Unbatched()), torch.randn(8, 8))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "size"), [(3, 2, 0, 12), (3, 2, 1, 9), (2, 2, 0, 7), (2, 3, 1, 8)]
)
def test_pools_that_round_up(kernel: int, stride: int, padding: int, size: int) -> None:
    pool = nn.MaxPool2d(kernel, stride, padding, ceil_mode=True)
    model = lively(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), pool, nn.Conv2d(8, 8, 3, padding=1)))
    for batch in (1, 9):
        x = torch.randn(batch, 3, size, size)
        fast = same(model, x)
        steps = next(iter(fast._choices.values())).plan.steps  # type: ignore[union-attr]
        assert "MaxPool" in {type(step).__name__ for _, step in steps}
