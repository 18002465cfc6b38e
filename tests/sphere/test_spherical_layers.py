import copy
import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.errors import PofError
from pof.sphere.spherical_layers import EPS, SphericalConv2d, SphericalLinear, normalize_inputs

PADDING = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}

CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "stride and padding": {"stride": 2, "padding": 1},
    "uneven": {"kernel_size": (3, 2), "stride": (1, 2), "padding": (2, 1), "dilation": (1, 2)},
    "dilation": {"dilation": 2, "padding": 2},
    "pointwise": {"kernel_size": 1},
    "grouped": {"groups": 2, "padding": 1},
    "depthwise": {"groups": 4, "padding": 1, "stride": 2},
    "depthwise, two filters a channel": {"out_channels": 8, "groups": 4},
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "circular, grouped": {"padding": 2, "padding_mode": "circular", "groups": 2},
}


def conv_of(options: dict[str, Any], mode: str = "patch") -> SphericalConv2d:
    torch.manual_seed(0)
    conv = SphericalConv2d(**{"in_channels": 4, "out_channels": 4, "kernel_size": 3, **options}).double()
    conv.mode = mode  # type: ignore[assignment]
    return conv


def patches(conv: nn.Conv2d, x: Tensor) -> list[list[Tensor]]:
    """For each output position of one sample the patch that it sees, by plain slicing."""
    above, beside = conv.padding
    padded = F.pad(x, (beside, beside, above, above), mode=PADDING[conv.padding_mode])
    high, wide = (d * (k - 1) + 1 for d, k in zip(conv.dilation, conv.kernel_size, strict=True))
    tops = range(0, padded.shape[-2] - high + 1, conv.stride[0])
    lefts = range(0, padded.shape[-1] - wide + 1, conv.stride[1])
    return [
        [padded[:, top : top + high : conv.dilation[0], left : left + wide : conv.dilation[1]] for left in lefts]
        for top in tops
    ]


def by_loop(conv: nn.Conv2d, sample: Tensor, norm: Callable[[Tensor], Tensor]) -> Tensor:
    """<w, x> / norm(x) + b for each filter w and each patch x of one sample; a group sees its own channels only."""
    seen = patches(conv, sample)
    out = torch.empty(conv.out_channels, len(seen), len(seen[0]), dtype=sample.dtype)
    inputs, outputs = conv.in_channels // conv.groups, conv.out_channels // conv.groups
    for unit, (i, row) in itertools.product(range(conv.out_channels), enumerate(seen)):
        first = unit // outputs * inputs
        for j, patch in enumerate(row):
            mine = patch[first : first + inputs]
            out[unit, i, j] = (conv.weight[unit] * mine).sum() / norm(mine)
            if conv.bias is not None:
                out[unit, i, j] += conv.bias[unit]
    return out


@pytest.mark.parametrize("name", CONVOLUTIONS)
@torch.no_grad()
def test_patch_mode_is_the_plain_loop(name: str) -> None:
    conv = conv_of(CONVOLUTIONS[name])
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    x[0, :, :3] = 0  # patches of zeros too
    expected = torch.stack([by_loop(conv, sample, lambda p: (p.square().sum() + EPS).sqrt()) for sample in x])
    torch.testing.assert_close(conv(x), expected)
    torch.testing.assert_close(conv(x[1]), expected[1], msg="an input without a batch dimension")
    last = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(conv.to(memory_format=torch.channels_last)(last), expected)


@pytest.mark.parametrize("name", CONVOLUTIONS)
@torch.no_grad()
def test_sample_mode_is_its_formula(name: str) -> None:
    conv = conv_of(CONVOLUTIONS[name], "sample")
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64) * torch.tensor([1.0, 30.0]).view(2, 1, 1, 1)
    fan_in = 4 // conv.groups * conv.kernel_size[0] * conv.kernel_size[1]
    expected = []
    for sample in x:
        mean_square = sum(value * value for value in sample.flatten().tolist()) / sample.numel()
        norm = torch.tensor((fan_in * mean_square + EPS) ** 0.5, dtype=torch.float64)
        expected.append(by_loop(conv, sample, lambda _, norm=norm: norm))
    torch.testing.assert_close(conv(x), torch.stack(expected))
    torch.testing.assert_close(conv(x[1]), expected[1])


@torch.no_grad()
def test_padding_by_word() -> None:
    x = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    torch.testing.assert_close(conv_of({"padding": "same"})(x), conv_of({"padding": 1})(x))
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 4, 3, padding="same"))
    normalize_inputs(model)
    assert model(torch.randn(1, 1, 5, 5)).shape == (1, 4, 5, 5)


@torch.no_grad()
def test_sample_mode_is_close_to_patch_mode_where_all_patches_are_alike() -> None:
    x = torch.ones(1, 4, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(conv_of({}, "sample")(x), conv_of({}, "patch")(x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6)])
@torch.no_grad()
def test_linear_is_its_formula(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer = SphericalLinear(6, 4, bias=bias).double()
    x = torch.randn(shape, dtype=torch.float64)
    expected = torch.empty(*shape[:-1], 4, dtype=torch.float64)
    for index in itertools.product(*map(range, shape[:-1])):
        norm = (sum(value * value for value in x[index].tolist()) + EPS) ** 0.5
        for unit in range(4):
            expected[(*index, unit)] = float(layer.weight[unit] @ x[index]) / norm
            if layer.bias is not None:
                expected[(*index, unit)] += layer.bias[unit]
    torch.testing.assert_close(layer(x), expected)


@torch.no_grad()
def test_with_unit_rows_the_outputs_are_cosines() -> None:
    torch.manual_seed(0)
    conv = conv_of({"bias": False, "padding": 1})
    conv.weight /= conv.weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    x = 10 * torch.randn(1, 4, 6, 6, dtype=torch.float64)
    assert conv(x).abs().max() <= 1
    x[:, :, 2:5, 1:4] = 50 * conv.weight[2]  # a patch that points where the filter does
    assert conv(x)[0, 2, 3, 2].item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("layer", ["patch", "sample", "linear"])
@torch.no_grad()
def test_the_scale_of_the_input_does_not_matter(layer: str) -> None:
    torch.manual_seed(0)
    module = SphericalLinear(5, 4) if layer == "linear" else conv_of({"padding": 1}, layer)
    x = 3 + torch.rand(2, 4, 5, 5, dtype=next(module.parameters()).dtype)
    for scale in (0.1, 1e3):
        torch.testing.assert_close(module(scale * x), module(x), rtol=1e-3, atol=1e-3)
    x = -x
    assert (module(x) - module(-x)).abs().max() > 0.1


@pytest.mark.parametrize("layer", ["patch", "sample", "linear"])
def test_gradients_are_finite_and_right(layer: str) -> None:
    torch.manual_seed(0)
    module = SphericalLinear(4, 2) if layer == "linear" else conv_of({"out_channels": 2, "kernel_size": 2}, layer)
    module = module.double()
    x = torch.randn(2, 4, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))
    zeros = torch.zeros(2, 4, 3, 4, dtype=torch.float64, requires_grad=True)
    module(zeros).sum().backward()
    assert zeros.grad.isfinite().all(), "EPS keeps a patch of zeros from 0/0"


@pytest.mark.parametrize("how", ["autocast", "autocast of a half input", "half"])
@pytest.mark.parametrize("layer", ["patch", "sample", "linear"])
@torch.no_grad()
def test_half_precision_does_not_overflow_the_norm(layer: str, how: str) -> None:
    torch.manual_seed(0)
    if layer == "linear":
        module, x = SphericalLinear(2048, 4), 8 * torch.randn(3, 2048)
    else:
        module, x = conv_of({"in_channels": 512}, layer).float(), 8 * torch.randn(2, 512, 4, 4)
    expected = module(x)
    # The sum of squares, 64 * 2048 and more, is beyond float16; its root is not.
    if how == "half":
        output = module.half()(x.half())
    else:
        with torch.autocast("cpu", dtype=torch.float16):
            output = module(x.half() if "half" in how else x)
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.001)


class Net(nn.Module):
    """A first convolution, one used twice, a depthwise one, and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.again = self.body[0]
        self.deep = nn.Conv2d(4, 4, 3, groups=4, stride=2, padding_mode="reflect", padding=1)
        self.hidden = nn.Linear(4, 6)
        self.classifier = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.deep(self.again(self.body(self.stem(x)).relu())).relu().mean(dim=(-2, -1))
        output: Tensor = self.classifier(self.hidden(x).relu())
        return output


def net() -> Net:
    torch.manual_seed(0)
    return Net()


SWAPPED = ["body.0", "deep", "hidden"]
X = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_the_swap() -> None:
    model = net().eval()
    model.deep.train()
    before = dict(model.named_parameters())
    keys = list(model.state_dict())
    shapes = str(model.deep)
    random = torch.get_rng_state()
    plain = model(X)

    assert normalize_inputs(model, "patch") == SWAPPED

    assert torch.equal(torch.get_rng_state(), random), "no random numbers are used up"
    assert list(model.state_dict()) == keys
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is parameter for name, parameter in before.items()), "an optimiser still holds them"
    assert [name for name, module in model.named_modules() if type(module) is SphericalConv2d] == ["body.0", "deep"]
    assert [name for name, module in model.named_modules() if type(module) is SphericalLinear] == ["hidden"]
    assert type(model.stem) is nn.Conv2d, "the first convolution sees the image as it is"
    assert type(model.classifier) is nn.Linear
    assert model.again is model.body[0], "one layer under two names stays one"
    assert (model.deep.training, model.hidden.training, model.body[0].training) == (True, False, False)
    assert str(model.deep) == f"Spherical{shapes}"
    assert list(dict(model.named_children())) == ["stem", "body", "again", "deep", "hidden", "classifier"]
    assert not torch.allclose(model(X), plain, atol=1e-3), "it computes something else now"


@pytest.mark.parametrize("mode", ["patch", "sample"])
def test_a_swapped_layer_computes_with_the_settings_of_the_old_one(mode: Any) -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, (3, 2), (1, 2), (2, 1), (1, 2), 2, padding_mode="circular")
    )
    state = copy.deepcopy(model[1].state_dict())
    normalize_inputs(model, mode)
    new = SphericalConv2d(4, 4, (3, 2), (1, 2), (2, 1), (1, 2), 2, padding_mode="circular")
    new.load_state_dict(state)
    new.mode = mode
    x = torch.randn(2, 4, 6, 5)
    torch.testing.assert_close(model[1](x), new(x))


def test_layers_that_share_a_weight_are_both_swapped() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    model[2].weight = model[0].weight
    normalize_inputs(model)
    assert [type(layer) for layer in model[::2]] == [SphericalLinear, SphericalLinear, nn.Linear]
    assert model[2].weight is model[0].weight
    assert model[2].bias is not model[0].bias


def test_hooks_stay_on_their_layer() -> None:
    model = net()
    seen = []
    model.hidden.register_forward_hook(lambda module, *_: seen.append(type(module)))
    normalize_inputs(model)
    model(X)
    assert seen == [SphericalLinear]


def test_frozen_parameters_stay_frozen_and_dtypes_stay() -> None:
    model = net().double()
    model.deep.weight.requires_grad_(False)
    normalize_inputs(model)
    assert not model.deep.weight.requires_grad
    assert model(X.double()).dtype is torch.float64


def test_include_and_exclude() -> None:
    assert normalize_inputs(net(), exclude=["deep"]) == ["body.0", "hidden"]
    assert normalize_inputs(net(), include=["stem", "classifier"]) == ["stem", "classifier"]
    with pytest.raises(PofError, match="include='steam' matches no weight"):
        normalize_inputs(net(), include=["steam"])


class OwnConv(nn.Conv2d):
    """Another library's layer, with a forward of its own."""


def test_other_layers_stay_as_they_are() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Conv1d(4, 4, 3), OwnConv(4, 4, 3), nn.ConvTranspose2d(4, 4, 3), nn.Conv2d(4, 4, 3)
    )
    before = list(model)
    assert normalize_inputs(model) == ["4"]
    assert list(model)[:4] == before[:4]


def test_a_swapped_model_trains_and_is_pruned_like_any_other() -> None:
    model = net()
    normalize_inputs(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), torch.arange(3))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    kinds = {entry.name: entry.kind for entry in pof.plan(model)}
    assert kinds["body.0.weight"] == "SphericalConv2d"
    assert kinds["hidden.weight"] == "SphericalLinear"


@pytest.mark.parametrize("mode", ["patch", "sample"])
def test_copies_and_files(mode: Any) -> None:
    model = net().eval()
    normalize_inputs(model, mode)
    expected = model(X)
    assert torch.equal(copy.deepcopy(model)(X), expected)
    assert torch.equal(pickle.loads(pickle.dumps(model))(X), expected)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    torch.manual_seed(1)
    other = Net().eval()
    other.load_state_dict(state)  # the keys are those of the plain model
    normalize_inputs(other, mode)
    assert torch.equal(other(X), expected)
    torch.manual_seed(2)
    third = Net().eval()
    normalize_inputs(third, mode)
    third.load_state_dict(state)
    assert torch.equal(third(X), expected)


@pytest.mark.parametrize("mode", ["patch", "sample"])
def test_export_with_a_dynamic_batch(mode: Any) -> None:
    model = net().eval()
    normalize_inputs(model, mode)
    batch = torch.export.Dim("batch", min=1, max=64)
    exported = torch.export.export(model, (X,), dynamic_shapes=({0: batch},)).module()
    for x in (X[:1], X.repeat(2, 1, 1, 1)):
        torch.testing.assert_close(exported(x), model(x))


@pytest.mark.parametrize("mode", ["batch", None, "", 1])
def test_an_unknown_mode_is_refused(mode: Any) -> None:
    model = net()
    with pytest.raises(PofError, match=r"^mode=.* must be one of 'patch', 'sample'$") as caught:
        normalize_inputs(model, mode)
    assert repr(mode) in str(caught.value)
    assert type(model.hidden) is nn.Linear


def test_nothing_to_swap_is_an_error() -> None:
    only_a_classifier = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))
    with pytest.raises(PofError, match=r"no layer to swap.*use include"):
        normalize_inputs(only_a_classifier)
    assert normalize_inputs(only_a_classifier, include=["2"]) == ["2"]


def test_swapping_twice_is_an_error_and_changes_nothing() -> None:
    model = net()
    normalize_inputs(model, "sample")
    with pytest.raises(PofError, match="no layer to swap"):
        normalize_inputs(model, "patch")
    assert model.deep.mode == "sample"


@pytest.mark.parametrize("model", [nn.Linear(3, 2), nn.Conv2d(3, 2, 1)])
def test_a_model_that_is_one_layer_is_swapped_when_it_is_named(model: nn.Module) -> None:
    with pytest.raises(PofError):
        normalize_inputs(model)
    assert normalize_inputs(model, include=["weight"]) == [""]
    assert isinstance(model, (SphericalLinear, SphericalConv2d))
