"""Plans name every large weight, pruning empties no layer, and zeros are zeros where the layer computes."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import network_operations
import pof
from foreign_networks import call
from network_operations import Subject

Build = Callable[[str], Subject]


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("transformers/mixtral", 0.9),
        ("transformers/gpt_oss", 0.9),
        ("transformers/qwen3_moe", 0.8),
        ("timm/tf_efficientnet_cc_b0_4e", 0.95),
    ],
)
def test_experts_are_planned(subject: Build, name: str, share: float) -> None:
    assert network_operations.plan(subject(name))["share"] > share


@pytest.mark.parametrize("name", ["transformers/gpt2", "transformers/mamba", "transformers/t5", "timm/sequencer2d_s"])
def test_what_is_not_planned_is_listed(subject: Build, name: str) -> None:
    network_operations.plan(subject(name))


def test_a_model_with_many_recurrent_layers_is_warned_of_once(subject: Build) -> None:
    found = subject("timm/sequencer2d_s")
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        pof.plan(found.model)
    assert len(given) == 1


def test_the_first_convolution_is_where_the_input_goes(subject: Build) -> None:
    chosen = pof.plan(subject("transformers/mamba").model)
    left_out = [name for name, reason in chosen.left_out if "first convolution" in reason]
    assert left_out == []
    chosen = pof.plan(subject("timm/coat_tiny").model)
    assert [name for name, reason in chosen.left_out if "first convolution" in reason] == ["patch_embed1.proj.weight"]


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize(
    "name",
    [
        "timm/coat_tiny", "timm/csatv2", "timm/ghostnet_100", "timm/ghostnetv3_100", "timm/eca_botnext26ts_256",
        "timm/edgenext_small", "timm/mobilenetv2_100", "transformers/mamba",
    ],
)  # fmt: skip
def test_no_layer_is_emptied_and_outputs_depend_on_inputs(subject: Build, name: str, scope: str) -> None:
    found = network_operations.prune(subject(name), scope)
    assert found["sparsity"] == pytest.approx(0.9, abs=0.001)


class ConvolvedWeights(TorchFunctionMode):
    """Notes the share of zeros in the weight that each module convolves with."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.zeros: dict[str, float] = {}
        self._inside: list[str] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda _m, _i, name=name: self._inside.append(name))
            module.register_forward_hook(lambda _m, _i, _o: self._inside.pop() and None)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.conv2d, torch.nn.functional.conv2d):
            self.zeros[self._inside[-1]] = float((args[1] == 0).float().mean())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "name", ["timm/nf_resnet26", "timm/nf_regnet_b0", "timm/nfnet_l0", "timm/resnetv2_50x1_bit", "torchvision/resnet18"]
)
def test_what_is_planned_is_what_is_convolved_with(subject: Build, name: str) -> None:
    found = subject(name)
    elastic = found.pruned()
    with torch.no_grad(), ConvolvedWeights(found.model) as seen:
        call(found.model, found.inputs)
    rows = {row.name.removesuffix(".weight"): row for row in elastic.layers()}
    planned = {layer: share for layer, share in seen.zeros.items() if layer in rows}
    for layer, share in planned.items():
        assert share == pytest.approx(rows[layer].zeros / rows[layer].weights, abs=1e-3), layer
    listed = {name for name, _ in elastic.plan.left_out}
    assert {f"{layer}.weight" for layer in seen.zeros if layer not in rows} <= listed


@pytest.mark.parametrize(
    "name", ["torchvision/mobilenet_v2", "timm/mobilenetv1_100", "timm/ghostnet_100", "timm/efficientnet_b0"]
)
def test_statistics_of_silenced_channels_keep_float32_near_float64(subject: Build, name: str) -> None:
    assert network_operations.calibrate(subject(name))["off_float64"] < 1e-3


@pytest.mark.parametrize("operation", ["recover", "restore", "training_step", "save_and_load"])
@pytest.mark.parametrize("name", ["timm/tf_efficientnet_cc_b0_4e", "timm/nf_resnet26", "transformers/mixtral"])
def test_the_rest_works_on_layers_of_a_new_kind(subject: Build, name: str, operation: str) -> None:
    getattr(network_operations, operation)(subject(name))
