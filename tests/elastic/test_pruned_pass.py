"""`with pof.pruned(model, s):` pruned weights inside, dense weights after, gradients on the dense weights."""

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

PLANNED = ("depthwise.weight", "up.weight", "fc.weight")


class Net(nn.Module):
    """`stem` is the first convolution, so it is left out of the plan."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.up = nn.ConvTranspose2d(6, 8, 2, stride=2, groups=2)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.depthwise(torch.relu(self.bn(self.stem(x)))))
        logits: Tensor = self.fc(self.drop(self.up(x).mean((2, 3))))
        return logits


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def data() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 1, 5, 5), torch.randint(5, (6,))


def bits(model: nn.Module) -> dict[str, bytes]:
    return {
        name: value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, value in model.state_dict().items()
    }


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


# --- gradients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.9])
def test_gradients_are_those_of_a_hand_made_pruned_forward(sparsity: float, training: bool) -> None:
    model = Net().train(training)
    x, y = data()
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
    model = Net()
    x, y = data()
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
    model = Net()
    x, y = data()
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
    model = Net()
    x, y = data()
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
    model = Net().to(dtype)
    if layout == "channels_last":
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before = bits(model)
    strides = [parameter.stride() for parameter in model.parameters()]
    x, y = data()
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
    model = Net()
    model.up.requires_grad_(False)
    x, y = data()
    with pof.pruned(model, 0.75):
        assert int((model.up.weight == 0).sum()) == 72
        F.cross_entropy(model(x), y).backward()
    assert model.up.weight.grad is None
    assert not model.up.weight.requires_grad
    assert model.fc.weight.grad is not None


def test_compiled_model() -> None:
    torch.compiler.reset()
    model = Net().eval()
    compiled: Any = torch.compile(model, backend="eager")
    x, y = data()
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


# --- what comes back ---------------------------------------------------------------------------------------------


def test_statistics_and_modes_come_back_and_dropout_is_the_models_own() -> None:
    model = Net(dropout=0.5)
    model.bn.eval()
    model(data()[0])
    model.bn.train()
    modes = {name: module.training for name, module in model.named_modules()}
    before = bits(model)
    with pof.pruned(model, 0.5):
        model(data()[0])
        assert model.bn.num_batches_tracked == 1
        assert bits(model)["bn.running_mean"] != before["bn.running_mean"]
    assert bits(model) == before
    assert {name: module.training for name, module in model.named_modules()} == modes


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_an_exception_inside_brings_everything_back(error: type[BaseException], magnitudes: Any) -> None:
    model = Net()
    before = bits(model)
    with pytest.raises(error, match="mine"), pof.pruned(model, 0.8, magnitudes=magnitudes):
        model(data()[0])
        raise error("mine")
    assert bits(model) == before


def make_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def make_fused_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1, fused=True)


class DataSgd(torch.optim.Optimizer):
    """Steps through `.data`, as many optimisers outside torch do; torch's count of changes does not see it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1)


def make_data_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return DataSgd(model.parameters())


@pytest.mark.parametrize("make", [make_sgd, make_fused_adam, make_data_sgd])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("sparsity", [0.0, 0.5])
def test_a_step_inside_is_an_error_and_the_weights_are_dense_again(
    make: Callable[[nn.Module], torch.optim.Optimizer], magnitudes: Any, sparsity: float
) -> None:
    model = Net()
    optimizer = make(model)
    x, y = data()
    before = bits(model)
    with (
        pytest.raises(pof.WeightsChangedError, match=r"'depthwise\.weight' .* step the optimizer outside"),
        pof.pruned(model, sparsity, magnitudes=magnitudes),
    ):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    after = bits(model)
    changed = {name for name in before if after[name] != before[name]}
    assert not changed & set(PLANNED)
    assert "bn.running_mean" not in changed


def test_a_step_inside_does_not_hide_another_error() -> None:
    model = Net()
    x, y = data()
    with pytest.raises(ZeroDivisionError), pof.pruned(model, 0.5):
        F.cross_entropy(model(x), y).backward()
        make_sgd(model).step()
        raise ZeroDivisionError


@pytest.mark.parametrize("change", [lambda model: model.half(), lambda model: model.to(torch.float64)])
def test_another_dtype_inside_is_an_error(change: Callable[[nn.Module], nn.Module]) -> None:
    model = Net()
    dense = {name: model.get_parameter(name).detach().clone() for name in PLANNED}
    with pytest.raises(pof.WeightsChangedError), pof.pruned(model, 0.5):
        change(model)
    for name, weight in dense.items():
        assert torch.equal(model.get_parameter(name), weight.to(model.fc.weight.dtype))


def test_a_layer_replaced_inside_is_an_error() -> None:
    """The new layer was never pruned, so whatever ran inside was not what was asked for."""
    model = Net()
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError, match=r"'fc\.weight'"), pof.pruned(model, 0.5):
        model.fc = nn.Linear(8, 5)
    assert bits(model)["up.weight"] == before["up.weight"]


@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm2d(7), nn.BatchNorm2d(6)])
def test_a_batchnorm_replaced_inside_is_a_clear_error(norm: nn.Module) -> None:
    model = Net()
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError, match="normalisation"), pof.pruned(model, 0.5):
        model.bn = norm  # type: ignore[assignment]
    assert all(bits(model)[name] == before[name] for name in PLANNED)


def test_a_weight_reshaped_inside_leaves_the_others_dense() -> None:
    model = Net()
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError, match=r"'depthwise\.weight'"), pof.pruned(model, 0.5):
        model(data()[0])
        model.depthwise.weight.data = torch.randn(3, 1, 3, 3)
    after = bits(model)
    assert {name for name in before if before[name] != after[name]} == {"depthwise.weight"}


def test_backward_outside_is_a_loud_error() -> None:
    """Autograd needs the pruned weights, which are gone: never a silent gradient of other weights."""
    model = Net()
    x, y = data()
    before = bits(model)
    with pof.pruned(model, 0.5):
        loss = F.cross_entropy(model(x), y)
    assert bits(model) == before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


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


def test_blocks_nest() -> None:
    model = Net()
    before = bits(model)
    with pof.pruned(model, 0.5):
        half = bits(model)
        with pof.pruned(model, 0.9):
            assert bits(model)["fc.weight"] != half["fc.weight"]
        assert bits(model) == half
    assert bits(model) == before


def test_inside_elastic_at() -> None:
    """The block prunes what is there: a pruned model, whose zeros are the smallest."""
    model = Net()
    before = bits(model)
    elastic = pof.Elastic(model)
    with elastic.at(0.5):
        with pof.pruned(model, 0.25):
            assert elastic.sparsity == 0.5
        with pof.pruned(model, 0.75):
            assert elastic.sparsity == pytest.approx(0.75, abs=0.01)
    assert bits(model) == before


def test_it_can_be_used_as_a_decorator_and_only_once() -> None:
    """What contextlib gives; each call of the function is a new block."""
    model = Net()
    before = bits(model)

    @pof.pruned(model, 0.75)
    def zeros() -> int:
        return int((model.fc.weight == 0).sum())

    assert [zeros(), zeros()] == [30, 30]
    assert bits(model) == before


# --- learning ----------------------------------------------------------------------------------------------------


def test_a_loop_of_a_dense_and_a_pruned_pass_learns_both() -> None:
    """Two moons of a sort; after training with both passes the pruned network is good without more ado."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 8, generator=generator)
    y = (x[:, 0] * x[:, 1] > 0).long()
    model = nn.Sequential(nn.Linear(8, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 2))

    def accuracy(sparsity: float) -> float:
        model.eval()
        with pof.pruned(model, sparsity), torch.no_grad():
            right = (model(x).argmax(1) == y).double().mean().item()
        model.train()
        return right

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with pof.pruned(model, 0.8):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert accuracy(0.0) > 0.95
    assert accuracy(0.8) > 0.8
    assert int((model[0].weight == 0).sum()) == 0, "no weight was lost on the way"
