"""Weights that are computed from others, nothing to prune, and what cannot be pruned."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from plan_reading import names, only
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import pof
from pof.errors import PlanError
from tests.small_models import LanguageModel

# Weights that are computed from others


@pytest.mark.parametrize(
    "compute",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        pytest.param(nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")),
    ],
    ids=["parametrised weight_norm", "spectral_norm", "torch's prune", "old weight_norm"],
)
def test_a_computed_weight_is_left_out_with_a_notice(compute: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(compute(nn.Linear(4, 4)), nn.Linear(4, 4))
    before = model.state_dict().keys()
    with pytest.warns(UserWarning, match=r"0\.weight is not pruned: it is no parameter .* make it one"):
        plan = pof.plan(model)
    assert names(plan) == ["1.weight"]
    assert model.state_dict().keys() == before


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (LanguageModel(), "lm_head"),
        (nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 4)), "0"),
    ],
    ids=["tied to an embedding", "parametrised"],
)
def test_excluding_what_cannot_be_pruned_silences_the_notice(model: nn.Module, name: str) -> None:
    # Warnings are errors in these tests.
    plan = pof.plan(model, exclude=name)
    assert len(plan) == 1
    assert plan.left_out[0] == (f"{name}.weight", "excluded")


def test_including_others_silences_the_notice() -> None:
    left_out = (("lm_head.weight", "excluded"), ("embedding.weight", "excluded"))
    assert pof.plan(LanguageModel(), include="body").left_out == left_out


def test_including_only_what_cannot_be_pruned_is_an_error_that_says_why() -> None:
    with pytest.raises(PlanError, match=r"lm_head\.weight is left out \(it is tied to an embedding"):
        pof.plan(LanguageModel(), include="lm_head")


# Nothing to prune, and what cannot be pruned


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.BatchNorm2d(4)])
def test_a_model_without_such_layers_has_nothing_to_prune(model: nn.Module) -> None:
    with pytest.raises(PlanError, match=f"nothing to prune in {type(model).__name__}: it has no convolution or linear"):
        pof.plan(model)


def test_a_lone_convolution_is_told_how_to_take_part() -> None:
    with pytest.raises(PlanError, match=r"include=\('weight',\) takes it in"):
        pof.plan(nn.Conv2d(3, 3, 3))
    assert names(pof.plan(nn.Conv2d(3, 3, 3), include=("weight",))) == ["weight"]


@pytest.mark.parametrize("model", [None, "resnet18", nn.Linear, torch.zeros(3)])
def test_what_is_no_module_is_an_error(model: Any) -> None:
    with pytest.raises(PlanError, match=r"pass a torch\.nn\.Module"):
        pof.plan(model)


def with_weight(weight: Tensor) -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


UNPRUNABLE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "meta": (lambda: nn.Linear(4, 4, device="meta"), "is on the meta device and has no values: load the weights first"),
    "lazy": (lambda: nn.LazyLinear(4), "has no shape yet .* run one batch"),
    "int8": (lambda: with_weight(torch.ones(4, 4, dtype=torch.int8)), "is torch.int8: pof prunes dense .*float32"),
    "complex": (lambda: nn.Linear(4, 4, dtype=torch.complex64), "is torch.complex64"),
    "float8": (lambda: with_weight(torch.ones(4, 4).to(torch.float8_e4m3fn)), "is torch.float8_e4m3fn"),
    "quantised": (
        lambda: with_weight(torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8)),
        "is torch.qint8: .* prune before quantising, or exclude it",
    ),
    "sparse": (lambda: with_weight(torch.eye(4).to_sparse()), "is torch.sparse_coo"),
    "mkldnn": (lambda: with_weight(torch.eye(4).to_mkldnn()), "is torch._mkldnn"),
}


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("kind", UNPRUNABLE)
def test_a_weight_that_cannot_be_pruned_is_an_error_unless_excluded(kind: str) -> None:
    make, reason = UNPRUNABLE[kind]
    model = nn.Sequential(nn.Linear(4, 4), make())
    with pytest.raises(PlanError, match=rf"weight '1\.weight' {reason}"):
        pof.plan(model)
    assert names(pof.plan(model, exclude="1")) == ["0.weight"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_point_type_takes_part(dtype: torch.dtype) -> None:
    assert names(pof.plan(nn.Linear(4, 4, dtype=dtype))) == ["weight"]


def test_a_lazy_layer_takes_part_after_its_first_batch() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    model(torch.ones(1, 3))
    assert only(model).shape == (4, 3)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_an_empty_weight_takes_no_part() -> None:
    assert names(pof.plan(nn.Sequential(nn.Linear(0, 4), nn.Linear(4, 4)))) == ["1.weight"]
