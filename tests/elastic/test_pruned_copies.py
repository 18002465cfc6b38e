"""A pruned model on its own: without its Elastic, copied, pickled, saved, exported."""

import copy
import gc
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

import pof
from tests.small_models import MixedNet, bits


@pytest.mark.parametrize("go", [lambda e: e.prune(0.7), lambda e: e.recover(0.3, 0.7), lambda e: e.restore()])
def test_a_dropped_elastic_leaves_the_model_as_it_is(go: Callable[[pof.Elastic], None]) -> None:
    model = MixedNet()
    elastic = pof.Elastic(model)
    elastic.prune(0.2)
    go(elastic)
    state = bits(model)
    del elastic
    gc.collect()
    assert bits(model) == state


def via_pickle(model: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(model))
    return loaded


def via_torch_save(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def via_state_dict(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    loaded = MixedNet()
    loaded.load_state_dict(torch.load(file, weights_only=True), strict=True)
    return loaded


@pytest.mark.parametrize("through", [copy.deepcopy, via_pickle, via_torch_save, via_state_dict])
def test_a_copy_of_a_pruned_model_has_the_zeros_and_the_keys(through: Callable[[nn.Module], nn.Module]) -> None:
    model = MixedNet().eval()
    keys = list(model.state_dict())
    before = bits(model)
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned = bits(model)
    other = through(model).eval()
    assert list(other.state_dict()) == keys
    assert bits(other) == pruned
    x = torch.randn(2, 3, 6, 6)
    assert torch.equal(other(x), model(x))
    elastic.restore()
    assert bits(model) == before
    assert bits(other) == pruned, "the copy lives its own life"
    again = pof.Elastic(other)
    again.prune(0.9)
    again.restore()
    assert bits(other) == pruned


def test_the_state_dict_does_not_grow() -> None:
    def size(model: nn.Module) -> int:
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        return file.getbuffer().nbytes

    model = MixedNet()
    before = size(model)
    pof.Elastic(model).prune(0.7)
    assert size(model) == before


def test_export_of_a_pruned_model() -> None:
    model = MixedNet().eval()
    elastic = pof.Elastic(model)
    elastic.prune(0.7)
    pruned = bits(model)
    x = torch.randn(2, 3, 6, 6)
    program = torch.export.export(model, (x,))
    assert bits(model) == pruned, "export alters nothing"
    assert int((program.state_dict["fc.weight"] == 0).sum()) == 21
    torch.testing.assert_close(program.module()(x), model(x))
