"""`with pof.pruned(model, s):` pruned weights inside, dense weights after, whatever happens inside."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pof
from tests.small_models import PLANNED, DropoutNet, bits, images_and_labels

# --- what comes back ---------------------------------------------------------------------------------------------


def test_statistics_and_modes_come_back_and_dropout_is_the_models_own() -> None:
    model = DropoutNet(dropout=0.5)
    model.bn.eval()
    model(images_and_labels()[0])
    model.bn.train()
    modes = {name: module.training for name, module in model.named_modules()}
    before = bits(model)
    with pof.pruned(model, 0.5):
        model(images_and_labels()[0])
        assert model.bn.num_batches_tracked == 1
        assert bits(model)["bn.running_mean"] != before["bn.running_mean"]
    assert bits(model) == before
    assert {name: module.training for name, module in model.named_modules()} == modes


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_an_exception_inside_brings_everything_back(error: type[BaseException], magnitudes: Any) -> None:
    model = DropoutNet()
    before = bits(model)
    with pytest.raises(error, match="mine"), pof.pruned(model, 0.8, magnitudes=magnitudes):
        model(images_and_labels()[0])
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
    model = DropoutNet()
    optimizer = make(model)
    x, y = images_and_labels()
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
    model = DropoutNet()
    x, y = images_and_labels()
    with pytest.raises(ZeroDivisionError), pof.pruned(model, 0.5):
        F.cross_entropy(model(x), y).backward()
        make_sgd(model).step()
        raise ZeroDivisionError


@pytest.mark.parametrize("change", [lambda model: model.half(), lambda model: model.to(torch.float64)])
def test_another_dtype_inside_is_an_error(change: Callable[[nn.Module], nn.Module]) -> None:
    model = DropoutNet()
    dense = {name: model.get_parameter(name).detach().clone() for name in PLANNED}
    with pytest.raises(pof.WeightsChangedError), pof.pruned(model, 0.5):
        change(model)
    for name, weight in dense.items():
        assert torch.equal(model.get_parameter(name), weight.to(model.fc.weight.dtype))


def test_a_layer_replaced_inside_is_an_error() -> None:
    """The new layer was never pruned, so whatever ran inside was not what was asked for."""
    model = DropoutNet()
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError, match=r"'fc\.weight'"), pof.pruned(model, 0.5):
        model.fc = nn.Linear(8, 5)
    assert bits(model)["up.weight"] == before["up.weight"]


@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm2d(7), nn.BatchNorm2d(6)])
def test_a_batchnorm_replaced_inside_is_a_clear_error(norm: nn.Module) -> None:
    model = DropoutNet()
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError, match="normalisation"), pof.pruned(model, 0.5):
        model.bn = norm  # type: ignore[assignment]
    assert all(bits(model)[name] == before[name] for name in PLANNED)


def test_a_weight_reshaped_inside_leaves_the_others_dense() -> None:
    model = DropoutNet()
    before = bits(model)
    with pytest.raises(pof.WeightsChangedError, match=r"'depthwise\.weight'"), pof.pruned(model, 0.5):
        model(images_and_labels()[0])
        model.depthwise.weight.data = torch.randn(3, 1, 3, 3)
    after = bits(model)
    assert {name for name in before if before[name] != after[name]} == {"depthwise.weight"}


def test_backward_outside_is_a_loud_error() -> None:
    """Autograd needs the pruned weights, which are gone: never a silent gradient of other weights."""
    model = DropoutNet()
    x, y = images_and_labels()
    before = bits(model)
    with pof.pruned(model, 0.5):
        loss = F.cross_entropy(model(x), y)
    assert bits(model) == before
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_blocks_nest() -> None:
    model = DropoutNet()
    before = bits(model)
    with pof.pruned(model, 0.5):
        half = bits(model)
        with pof.pruned(model, 0.9):
            assert bits(model)["fc.weight"] != half["fc.weight"]
        assert bits(model) == half
    assert bits(model) == before


def test_inside_elastic_at() -> None:
    """The block prunes what is there: a pruned model, whose zeros are the smallest."""
    model = DropoutNet()
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
    model = DropoutNet()
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


def test_a_first_block_in_inference_mode_spoils_nothing() -> None:
    model, (x, y) = DropoutNet(), images_and_labels()
    with torch.inference_mode(), pof.pruned(model, 0.5):
        model(x)
    with pof.pruned(model, 0.5):
        F.cross_entropy(model(x), y).backward()


def test_weights_that_are_tied_or_untied_between_blocks_are_planned_again() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    with pof.pruned(model, 0.5):
        assert int((model[1].weight == 0).sum()) == 32
    model[1].weight = nn.Parameter(torch.randn(8, 8))
    with pof.pruned(model, 0.5):
        assert [int((layer.weight == 0).sum()) for layer in model] == [32, 32]


def test_models_that_are_equal_are_not_taken_for_each_other() -> None:
    class Equal(nn.Linear):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        def __hash__(self) -> int:
            return 1

    one, other = Equal(8, 8), Equal(8, 8)
    for model, counts in ((one, (32, 0)), (other, (0, 32)), (one, (32, 0))):
        with pof.pruned(model, 0.5):
            assert (int((one.weight == 0).sum()), int((other.weight == 0).sum())) == counts


def test_a_model_is_freed_although_its_pass_is_remembered() -> None:
    model = nn.Linear(30, 30)
    with pof.pruned(model, 0.5):
        pass
    gone = weakref.ref(model)
    del model
    assert gone() is None
