"""Masked weights for the length of a pass."""

from __future__ import annotations

from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pof.elastic.pruned_pass import PrunedPass
from pof.elastic.second_pass import moved
from pof.errors import PofError
from pof.methods.masks import Masks
from pof.ranking.shares import share_globally


def net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.Flatten())


def masks_of(model: nn.Module) -> Masks:
    return Masks(model, SGD(model.parameters(), lr=0.1))


def applied(model: nn.Module, masks: Masks) -> AbstractContextManager[None]:
    """Masked weights inside the block, as DPF and cyclical pruning have them."""
    return PrunedPass(model, keep_statistics=True).masked_by(model, masks.kept)


def test_masked_inside_and_the_same_bits_after() -> None:
    model = net().to(memory_format=torch.channels_last)
    weight = model[1].weight
    with torch.no_grad():
        weight[0, 0, 0] = torch.tensor([-0.0, 0.0, -1.0])
    masks = masks_of(model)
    masks.choose(0.5)
    bits, place = weight.detach().clone().view(torch.int32), weight.data_ptr()
    with applied(model, masks):
        assert int((weight == 0).sum()) == 108
        assert model[1].weight is weight
        model(torch.ones(2, 1, 6, 6)).sum().backward()
    assert torch.equal(weight.detach().view(torch.int32), bits)
    assert weight.data_ptr() == place
    assert weight.is_contiguous(memory_format=torch.channels_last)


def test_a_pass_inside_reaches_masked_weights_and_statistics() -> None:
    model = net()
    masks = masks_of(model)
    masks.choose(0.5)
    with applied(model, masks):
        (model(torch.randn(4, 1, 6, 6)) ** 3).sum().backward()
    assert model[1].weight.grad is not None
    assert bool((model[1].weight.grad != 0).all()), "straight through the mask"
    assert model[2].num_batches_tracked == 1, "the pass counts for BatchNorm"


def test_the_dense_weights_come_back_after_an_exception() -> None:
    model = net()
    masks = masks_of(model)
    masks.choose(0.9)
    dense = model[1].weight.detach().clone()
    with pytest.raises(KeyboardInterrupt), applied(model, masks):
        raise KeyboardInterrupt
    assert torch.equal(model[1].weight, dense)


def test_global_scope_ranks_all_layers_together() -> None:
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    with torch.no_grad():
        model[0].weight.mul_(10.0)
    masks = masks_of(model)
    masks.choose(0.5, "global")
    pruned = [int((~mask).sum()) for mask in masks.kept.values()]
    assert sum(pruned) == 100
    assert pruned == share_globally([model[0].weight.detach(), model[1].weight.detach()], 0.5)
    assert pruned[0] < 20 < 80 < pruned[1]


def test_masks_of_another_model_are_refused() -> None:
    masks = masks_of(nn.Linear(4, 4))
    with pytest.raises(PofError, match="another plan"):
        masks.load_state_dict(masks_of(nn.Linear(4, 5)).state_dict())


def test_one_autocast_block_sees_both_the_dense_and_the_masked_weights() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    masks = Masks(model, SGD(model.parameters(), lr=0.1))
    masks.choose(0.5)
    inputs = torch.randn(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(inputs)
        with applied(model, masks):
            inside = model(inputs)
        with moved(list(model.parameters()), [torch.ones_like(p) for p in model.parameters()], 1.0):
            uphill = model(inputs)
        after = model(inputs)
    assert torch.equal(before, after)
    assert not torch.equal(before, inside)
    assert not torch.equal(before, uphill)
