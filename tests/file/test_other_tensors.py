"""What else is in a state_dict, and metadata: kept as they are, tied tensors once."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from file_helpers import assert_same, at_states, zeroed
from torch import nn

import pof
from pof.file.writing import save_state_dict
from tests.small_models import Kinds, bits, randomised


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zz", torch.arange(-3, 4))
        self.fc = nn.Linear(8, 8)
        self.register_buffer("aa", torch.tensor([True, False, True]))
        self.register_buffer("double_", torch.tensor([[1 / 3, math.nan], [math.inf, -0.0]], dtype=torch.float64))
        self.register_buffer("empty", torch.empty(0, 3))
        self.register_buffer("empty_long", torch.empty(2, 0, dtype=torch.int64))
        self.register_buffer("scalar", torch.tensor(2**62 + 1))
        self.register_buffer("nan", torch.tensor([[math.nan, math.inf]]))
        for dtype in (torch.int8, torch.int16, torch.int32, torch.uint8, torch.complex64, torch.complex128):
            self.register_buffer(f"as_{str(dtype)[6:]}", torch.arange(5).to(dtype) * 25)
        self.register_buffer("half_", torch.randn(3, 2).half())
        self.register_buffer("brain", torch.randn(3, 2).bfloat16())
        self.register_buffer("strided", torch.randn(6, 4).t()[::2])
        self.register_buffer("expanded", torch.tensor([1.5]).expand(4))
        self.register_buffer("näme", torch.ones(1))


@pytest.mark.parametrize("values", ["exact", "fp16", "int8"])
def test_other_tensors_keep_type_value_and_order(file: Path, values: str) -> None:
    model = Buffers()
    pof.save(model, file, values=values)
    found = pof.open(file).state_dict()
    assert list(found) == list(model.state_dict())
    for name, value in model.state_dict().items():
        assert found[name].dtype is value.dtype
        assert found[name].shape == value.shape
        if values == "exact" or value.dim() < 2 or value.dtype is not torch.float32:
            assert bits({"": found[name]}) == bits({"": value}), name
        elif name != "fc.weight":
            torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-6, equal_nan=True)


def test_a_view_of_the_same_memory_in_another_type_is_no_alias(file: Path) -> None:
    model = nn.Linear(4, 4)
    model.register_buffer("number", torch.tensor([1.0, -2.0]))
    model.register_buffer("pattern", model.number.view(torch.int32))
    pof.save(model, file)
    assert bits(pof.open(file).state_dict()) == bits(model)


def test_a_weight_tied_in_another_shape_is_refused(file: Path) -> None:
    """Loading the transposed one, which is not pruned, would undo the pruning of the other."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 6))
    model[1].weight = nn.Parameter(model[0].weight.data.t())
    with pytest.warns(UserWarning, match="shares memory"), pytest.raises(pof.PofError, match="untie"):
        pof.save(model, file)
    assert not file.exists()


def test_columns_of_one_memory_are_no_tie(file: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(6, 8))
    both = torch.randn(8, 12)
    model[0].weight, model[1].weight = (nn.Parameter(half) for half in both.split(6, dim=1))
    with pytest.warns(UserWarning, match="shares memory"):
        pof.save(model, file)
    assert bits(pof.open(file).state_dict()) == bits(model)


def test_tied_tensors_are_stored_once(file: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    apart = pof.save(model, file)
    model[2].weight = model[0].weight
    assert pof.save(model, file) < 0.6 * apart
    assert bits(pof.open(file).state_dict()) == bits(model)
    untied = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    pof.load(file, into=untied, sparsity=0.5)
    assert torch.equal(untied[0].weight, untied[2].weight)


def test_metadata_is_kept(file: Path) -> None:
    metadata = {"name": "Ünïcode ✓\n\"'\\", "empty": "", "": "no name", "number": 5}
    pof.save(nn.Linear(4, 4), file, metadata=metadata)
    assert pof.open(file).metadata == {**metadata, "number": "5"}
    pof.save(nn.Linear(4, 4), file)
    assert pof.open(file).metadata == {}


@pytest.mark.parametrize("metadata", [["a"], {"a": "\ud800"}, {"a": "x" * (1 << 26)}], ids=["list", "text", "huge"])
def test_metadata_that_cannot_be_read_again_is_refused(file: Path, metadata: Any) -> None:
    with pytest.raises(pof.PofError):
        pof.save(nn.Linear(4, 4), file, metadata=metadata)
    assert not file.exists()


def test_a_state_dict_without_its_model(file: Path) -> None:
    model = randomised(Kinds())
    save_state_dict(model.state_dict(), file)
    assert bits(pof.open(file).state_dict()) == bits(model)
    pof.load(file, into=(loaded := zeroed(model)), sparsity=0.9)
    assert torch.equal(loaded.stem.weight, model.stem.weight)
    (_, expected), *_ = at_states(model, [(0.9, None)])
    assert_same(loaded.state_dict(), expected)


def test_another_precision_of_the_model_takes_what_the_file_has(file: Path) -> None:
    model = randomised(Kinds())
    pof.save(model, file)
    half = zeroed(model).half()
    pof.load(file, into=half, sparsity=0.7)
    full = zeroed(model)
    pof.load(file, into=full, sparsity=0.7)
    assert bits(half) == bits(full.half())
