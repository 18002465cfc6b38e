"""The inputs of layers, as columns that their rows are multiplied with."""

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.fitting import layer_inputs
from pof.fitting.layer_inputs import RefittableLayer, in_waves, input_grams, refittable_layers
from tests.convnets import convnet, inputs

LAYERS = {
    "strided, grouped": (lambda: nn.Conv2d(6, 8, 3, stride=2, padding=1, groups=2, bias=False), (3, 6, 9, 11)),
    "dilated, same": (lambda: nn.Conv1d(4, 6, 5, padding="same", dilation=2, bias=False), (2, 4, 17)),
    "three dimensions": (
        lambda: nn.Conv3d(2, 3, (1, 2, 3), padding=1, padding_mode="replicate", bias=False),
        (2, 2, 4, 5, 6),
    ),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), (2, 4, 6, 6)),
    "linear, tokens": (lambda: nn.Linear(5, 7, bias=False), (3, 4, 5)),
    "one weight": (lambda: nn.Linear(1, 1, bias=False), (3, 1)),
}


@pytest.mark.parametrize("kind", list(LAYERS))
def test_rows_times_columns_are_the_outputs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "POSITIONS", 10**6)
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    module = make()
    x = torch.randn(shape)
    layer = RefittableLayer("weight", module, module.weight)
    with torch.no_grad():
        products = layer.rows(module.weight) @ layer.columns(x, torch.Generator())
        wanted = module(x).movedim(1, 0) if isinstance(module, layer_inputs.CONVOLUTIONS) else module(x).movedim(-1, 0)
    ours, theirs = products.flatten(0, 1).sort(1).values, wanted.flatten(1).sort(1).values
    torch.testing.assert_close(ours, theirs)
    assert torch.equal(layer.as_weight(layer.rows(module.weight)), module.weight)


def test_transposed_linear_layers() -> None:
    from transformers.pytorch_utils import Conv1D

    module = Conv1D(6, 4)
    layer = RefittableLayer("weight", module, module.weight)
    x = torch.randn(3, 2, 4)
    with torch.no_grad():
        products = layer.rows(module.weight) @ layer.columns(x, torch.Generator())
        torch.testing.assert_close(products[0].t().reshape(3, 2, 6), module(x) - module.bias)
    assert torch.equal(layer.as_weight(layer.rows(module.weight)), module.weight)


def test_products_are_sums_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "POSITIONS", 10**6)
    model = convnet()
    layers, others = refittable_layers(model, pof.plan(model))
    assert [layer.name for layer in layers] == ["3.weight", "6.weight", "11.weight"]
    assert others == {}
    x = inputs(24)
    whole, parts = input_grams(model, layers, [x]), input_grams(model, layers, list(x.split(8)))
    for name, gram in whole.items():
        torch.testing.assert_close(parts[name], gram, rtol=1e-4, atol=1e-3)
    assert whole["3.weight"].shape == (2, 72, 72)


def test_centred_products_are_those_of_inputs_without_their_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "POSITIONS", 10**6)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)).eval()
    (layer,), _ = refittable_layers(model, pof.plan(model, include="*"))
    x = torch.randn(10, 4, 6, 7) + 3
    found = input_grams(model, [layer], list(x.split(4)), centred=["0.weight"])["0.weight"]
    columns = layer.columns(x, torch.Generator())
    away = columns - columns.mean(2, keepdim=True)
    torch.testing.assert_close(found, away @ away.transpose(1, 2), rtol=1e-3, atol=1e-2)


def test_large_means_leave_no_negative_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_inputs, "POSITIONS", 10**6)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)).eval()
    (layer,), _ = refittable_layers(model, pof.plan(model, include="*"))
    x = 0.01 * torch.randn(40, 4, 6, 7) + torch.tensor([1000.0, 100.0, 0.0, -300.0]).view(1, 4, 1, 1)
    x[:, 2] = 0.0
    found = input_grams(model, [layer], list(x.split(4)), centred=["0.weight"])["0.weight"]
    sizes = torch.linalg.eigvalsh(found[0].double())
    assert sizes.min() > -1e-4 * sizes.max()


def test_layers_that_are_not_refitted_are_named() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(4, 4, 2)
            self.one = nn.Linear(4, 4)
            self.two = nn.Linear(4, 4)
            self.two.weight = self.one.weight
            self.unused = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.two(self.one(self.up(x).mean((2, 3))))
            return found

    model = Parts()
    layers, others = refittable_layers(model, pof.plan(model, include="*"))
    assert others["up.weight"].startswith("ConvTranspose2d is not refitted")
    assert others["one.weight"] == "several layers share it"
    assert list(input_grams(model, layers, [torch.randn(2, 4, 3, 3)])) == []


def test_waves_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    layers, _ = refittable_layers(model, pof.plan(model))
    monkeypatch.setattr(layer_inputs, "MOST_BYTES", 2 * 4 * 64)
    assert [len(wave) for wave in in_waves(layers)] == [2, 2, 1]
    monkeypatch.setattr(layer_inputs, "MOST_BYTES", 1)
    assert [len(wave) for wave in in_waves(layers)] == [1] * 5
