"""How many bytes a file takes, and that the same network gives the same bytes."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from file_helpers import FLOATS, STAGES, assert_like_elastic, loaded_dense
from torch import nn

import pof
from tests.small_models import Kinds, bits, randomised

# --- size -----------------------------------------------------------------------------------------------------------


def information(share: float) -> float:
    """Bits that it takes to say which share of many is meant, for each of them."""
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


@pytest.mark.parametrize("layer", [nn.Conv2d(64, 64, 3, bias=False), nn.Linear(192, 192, bias=False)], ids=str)
@pytest.mark.parametrize("stages", [STAGES, (), (0.5,)])
def test_a_pruned_model_takes_only_mask_bits_for_its_zeros(
    file: Path, layer: nn.Module, stages: tuple[float, ...]
) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), copy.deepcopy(layer))
    count = layer.weight.numel()
    pof.Elastic(model).prune(0.9)
    size = pof.save(model, file, stages=stages)
    assert bits(loaded_dense(file, model)) == bits(model)
    assert size < count * information(0.1) / 8 * 1.05 + 0.1 * count * 4 + 1500


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
@pytest.mark.parametrize("stages", [STAGES, (), (0.9, 0.5)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_recovered_model_is_stored_by_its_fill(
    file: Path, monkeypatch: pytest.MonkeyPatch, magnitudes: Any, stages: tuple[float, ...], dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Conv2d(48, 64, 3, bias=False)).to(dtype)
    count = model[1].weight.numel()
    dense = pof.save(model, file, stages=stages, magnitudes=magnitudes)
    pof.Elastic(model, magnitudes=magnitudes).recover(0.3, 0.7)
    size = pof.save(model, file, stages=stages, magnitudes=magnitudes)
    loaded = loaded_dense(file, model)
    assert bits(loaded) == bits(model)
    assert_like_elastic(file, loaded, [(0.9, None), (0.6, None), (0.5, 0.2)], magnitudes=magnitudes)
    # Kept values, two masks, a sign each.
    kept = 0.3 * count * dtype.itemsize
    assert size < kept + count * (information(0.3) + 0.7 * information(0.4 / 0.7) + 0.7) / 8 * 1.1 + 2500
    assert size < 0.72 * dense

    monkeypatch.setattr("pof.file.filled_bands.FILL_SHARE", 2.0)
    assert pof.save(model, file, stages=stages, magnitudes=magnitudes) > size or stages == STAGES
    assert bits(loaded_dense(file, model)) == bits(model)


# --- the same network gives the same bytes --------------------------------------------------------------------------


def saved(model: nn.Module, file: Path, **chosen: Any) -> bytes:
    pof.save(model, file, **chosen)
    return file.read_bytes()


@pytest.mark.parametrize("chosen", [{}, {"magnitudes": "unit", "scope": "global"}, {"values": "int8"}], ids=str)
def test_the_same_model_gives_the_same_bytes_in_any_memory_layout(file: Path, chosen: dict[str, Any]) -> None:
    model = randomised(Kinds())
    expected = saved(model, file, **chosen)
    assert saved(model, file, **chosen) == expected
    assert saved(copy.deepcopy(model).train().requires_grad_(False), file, **chosen) == expected
    last = copy.deepcopy(model)
    for module in last.modules():
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            module.to(memory_format=torch.channels_last)
    assert not last.kernel.weight.is_contiguous()
    assert saved(last, file, **chosen) == expected
    apart = copy.deepcopy(model)
    for module in list(apart.modules()):
        if getattr(module, "weight", None) is not None and module.weight.dim() > 1 and module is not apart.again:
            wide = torch.zeros(*module.weight.shape[:-1], 2 * module.weight.shape[-1])[..., ::2]
            module.weight = nn.Parameter(wide.copy_(module.weight.data))
    apart.again.weight = apart.head.weight
    assert not apart.head.weight.is_contiguous()
    assert saved(apart, file, **chosen) == expected
    with torch.inference_mode():
        assert saved(copy.deepcopy(model), file, **chosen) == expected


def test_what_is_read_and_written_again_is_the_same_file(file: Path, tmp_path: Path) -> None:
    model = randomised(Kinds())
    for chosen in ({"values": "exact"}, {"values": "fp16"}, {"values": "int8"}):
        first = saved(model, file, **chosen)
        again = saved(loaded_dense(file, model), tmp_path / "again.pof", **chosen)
        assert again == first
