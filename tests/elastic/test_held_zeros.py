"""`Elastic.hold`: fine-tuning a pruned model, where what is zero stays zero, whatever the optimiser carries along."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

import pof
from pof.errors import PofError

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "sgd nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd fused": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "adam": lambda p: Adam(p, lr=0.02),
    "adam amsgrad": lambda p: Adam(p, lr=0.02, amsgrad=True),
    "adamw": lambda p: AdamW(p, lr=0.02, weight_decay=0.1),
    "adamw fused": lambda p: AdamW(p, lr=0.02, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.9),
}


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 4 * 4, 3)
    )


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(3, (16,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def zeros(model: nn.Module) -> dict[str, Tensor]:
    return {name: model.get_parameter(name).detach() == 0 for name in ("2.weight", "5.weight")}


def assert_equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert [name for name in right if not torch.equal(left[name], right[name])] == []


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zeros_stay_zero_and_what_is_kept_trains(name: str) -> None:
    """The optimiser has trained before, so it carries momentum that would move the pruned weights."""
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 5)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned, before = zeros(model), {n: p.detach().clone() for n, p in model.named_parameters()}
    assert [int(mask.sum()) for mask in pruned.values()] == [round(0.7 * 216), round(0.7 * 288)]
    elastic.hold(optimizer)
    for _ in range(5):
        train(model, optimizer, 1)
        assert_equal(zeros(model), pruned)
    for weight, mask in pruned.items():
        moved = model.get_parameter(weight).detach() != before[weight]
        assert not moved[mask].any()
        assert moved[~mask].float().mean() > 0.9
    assert not torch.equal(model[0].weight, before["0.weight"]), "what is not in the plan trains too"


def test_a_hook_of_the_optimizer_that_writes_a_checkpoint_sees_the_zeros() -> None:
    """Also one that was there first: hooks run in the order in which they came."""
    model = small_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    written: list[float] = []
    elastic = pof.Elastic(model)
    optimizer.register_step_post_hook(lambda *_: written.append(elastic.sparsity))
    elastic.prune(0.7)
    elastic.hold(optimizer)
    train(model, optimizer, 4)
    assert written == pytest.approx([0.7] * 4, abs=0.01)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_without_it_momentum_revives_pruned_weights(name: str) -> None:
    """What `hold` is there for: masked gradients are not enough."""
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 5)
    pof.Elastic(model).prune(0.7)
    pruned = zeros(model)
    for weight, mask in pruned.items():
        model.get_parameter(weight).register_hook(lambda grad, mask=mask: grad * ~mask)
    train(model, optimizer, 1)
    assert all(bool((model.get_parameter(weight)[mask] != 0).any()) for weight, mask in pruned.items())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_state_at_the_zeros_is_zero(name: str) -> None:
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 2)
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    elastic.hold(optimizer)
    check_state(model, optimizer)
    train(model, optimizer, 2)
    check_state(model, optimizer)


def check_state(model: nn.Module, optimizer: Optimizer) -> None:
    for name, mask in zeros(model).items():
        weight = model.get_parameter(name)
        state = {key: value for key, value in optimizer.state[weight].items() if value.shape == weight.shape}
        assert state
        for key, value in state.items():
            assert not value[mask].any(), f"{key} of {name}"
            assert value[~mask].any(), f"{key} of {name}"


def test_holding_changes_nothing_by_itself() -> None:
    model = small_model()
    elastic = pof.Elastic(model)
    elastic.prune(0.6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = OPTIMIZERS["adam"](model.parameters())
    elastic.hold(optimizer)
    assert_equal(dict(model.state_dict()), before)
    assert not optimizer.state, "no state is made before the first step"


def test_remove_sets_the_zeros_free() -> None:
    model = small_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned = zeros(model)
    handle = elastic.hold(optimizer)
    train(model, optimizer, 1)
    handle.remove()
    train(model, optimizer, 1)
    assert all(int(now.sum()) < int(pruned[name].sum()) / 2 for name, now in zeros(model).items())


def test_a_recovered_band_trains_and_only_its_zeros_are_held() -> None:
    model = small_model()
    elastic = pof.Elastic(model)
    elastic.recover(0.3, 0.7)
    pruned = zeros(model)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    elastic.hold(optimizer)
    train(model, optimizer, 3)
    assert_equal(zeros(model), pruned)
    assert elastic.sparsity == pytest.approx(0.3, abs=0.002)


def test_the_trained_weights_become_the_dense_ones_after_refresh() -> None:
    model = small_model()
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    elastic.hold(optimizer)
    train(model, optimizer, 3)
    tuned = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(pof.WeightsChangedError, match=r"elastic\.refresh\(\)"):
        elastic.prune(0.9)
    elastic.refresh()
    elastic.prune(0.9)
    elastic.restore()
    assert_equal(dict(model.state_dict()), tuned)


@pytest.mark.parametrize("order", ["hold first", "attach first"])
def test_hold_and_attach_together_keep_zeros_and_norms(order: str) -> None:
    model = small_model()
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned, norms = zeros(model), model[2].weight.detach().flatten(1).norm(dim=1)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    if order == "hold first":
        elastic.hold(optimizer)
    pof.attach(model, optimizer, tr=(0.9, 0.7), steps=5)
    if order == "attach first":
        elastic.hold(optimizer)
    for _ in range(5):
        train(model, optimizer, 1)
        assert_equal(zeros(model), pruned)
        torch.testing.assert_close(model[2].weight.detach().flatten(1).norm(dim=1), norms, rtol=1e-5, atol=0)


def test_hold_goes_to_the_optimizer_inside_a_wrapper() -> None:
    class Wrapper:
        def __init__(self, optimizer: Optimizer) -> None:
            self.optimizer = optimizer

    model = small_model()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned = zeros(model)
    wrapper: Any = Wrapper(optimizer)
    elastic.hold(wrapper)
    train(model, optimizer, 2)
    assert_equal(zeros(model), pruned)


def test_tied_weights_are_held_once_and_stay_tied() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    model[2].weight = model[0].weight
    elastic = pof.Elastic(model)
    elastic.prune(0.5)
    mask = model[0].weight.detach() == 0
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    elastic.hold(optimizer)
    for _ in range(3):
        model(torch.ones(2, 6)).square().sum().backward()
        optimizer.step()
    assert model[2].weight is model[0].weight
    assert torch.equal(model[2].weight == 0, mask)


def test_an_optimizer_that_trains_none_of_it_is_an_error() -> None:
    elastic = pof.Elastic(small_model())
    with pytest.raises(PofError, match="trains no weight of the plan"):
        elastic.hold(OPTIMIZERS["sgd"](small_model().parameters()))
    with pytest.raises(PofError, match=r"pass a torch\.optim\.Optimizer"):
        elastic.hold("sgd")  # type: ignore[arg-type]
