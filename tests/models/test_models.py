import ast
import copy
import functools
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.flop_counter import FlopCounterMode

import pof.models
from pof.errors import PofError
from pof.models import MODELS, mobilenet_v2, mobilenet_v2_cifar, resnet18, resnet20
from pof.models.cifar_resnet import PadShortcut

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v2_cifar": 2_236_682,
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet44": 658_586,
    "resnet56": 853_018,
    "digits_convnet": 93_546,
}

# Names and shapes as torchvision's checkpoints have them.
TORCHVISION = {
    "resnet18": {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.running_mean": (64,),
        "bn1.num_batches_tracked": (),
        "layer1.0.conv1.weight": (64, 64, 3, 3),
        "layer1.1.bn2.bias": (64,),
        "layer2.0.downsample.0.weight": (128, 64, 1, 1),
        "layer2.0.downsample.1.running_var": (128,),
        "layer4.1.conv2.weight": (512, 512, 3, 3),
        "fc.weight": (1000, 512),
        "fc.bias": (1000,),
    },
    "resnet34": {
        "layer2.3.conv2.weight": (128, 128, 3, 3),
        "layer3.5.bn1.weight": (256,),
        "layer4.0.downsample.0.weight": (512, 256, 1, 1),
        "layer4.2.conv2.weight": (512, 512, 3, 3),
    },
    "resnet50": {
        "layer1.0.conv1.weight": (64, 64, 1, 1),
        "layer1.0.conv3.weight": (256, 64, 1, 1),
        "layer1.0.downsample.0.weight": (256, 64, 1, 1),
        "layer1.0.downsample.1.bias": (256,),
        "layer3.5.bn3.running_var": (1024,),
        "layer4.0.conv2.weight": (512, 512, 3, 3),
        "fc.weight": (1000, 2048),
    },
    "mobilenet_v2": {
        "features.0.0.weight": (32, 3, 3, 3),
        "features.0.1.running_mean": (32,),
        "features.1.conv.0.0.weight": (32, 1, 3, 3),
        "features.1.conv.1.weight": (16, 32, 1, 1),
        "features.1.conv.2.weight": (16,),
        "features.2.conv.0.0.weight": (96, 16, 1, 1),
        "features.2.conv.1.0.weight": (96, 1, 3, 3),
        "features.2.conv.2.weight": (24, 96, 1, 1),
        "features.17.conv.3.num_batches_tracked": (),
        "features.18.0.weight": (1280, 320, 1, 1),
        "features.18.1.bias": (1280,),
        "classifier.1.weight": (1000, 1280),
        "classifier.1.bias": (1000,),
    },
}
# How many entries torchvision's state_dict has: together with the parameter count, no name is left over.
ENTRIES = {"resnet18": 122, "resnet34": 218, "resnet50": 320, "mobilenet_v2": 314}

# Giga multiply-adds of a 224 x 224 image, from torchvision's table; they pin the strides, which no name does.
GIGA_MACS = {"resnet18": 1.814, "resnet34": 3.664, "resnet50": 4.089, "mobilenet_v2": 0.301}


@functools.cache
def on_meta(name: str) -> nn.Module:
    """Return the model in eval mode, without storage: names, shapes and graphs need none."""
    with torch.device("meta"):
        return MODELS[name]().eval()


def macs(model: nn.Module, size: int) -> int:
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, size, size, device="meta"))
    return int(counter.get_total_flops()) // 2


def randomise_norms(model: nn.Module) -> nn.Module:
    """Give every BatchNorm statistics of its own, so that two that change places are noticed."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = 0.1 * torch.randn(module.num_features)
            module.running_var = 0.5 + torch.rand(module.num_features)
    return model


def option_a_by_loop(x: Tensor, out_channels: int, stride: int) -> Tensor:
    batch, channels, height, width = x.shape
    rows, columns = range(0, height, stride), range(0, width, stride)
    out = torch.zeros(batch, out_channels, len(rows), len(columns))
    offset = (out_channels - channels) // 2
    for n in range(batch):
        for c in range(channels):
            for i, row in enumerate(rows):
                for j, column in enumerate(columns):
                    out[n, offset + c, i, j] = x[n, c, row, column]
    return out


def test_every_model_is_listed_and_exported() -> None:
    assert set(MODELS) == set(PARAMETERS)
    for name, constructor in MODELS.items():
        assert getattr(pof.models, name) is constructor
    assert set(MODELS) < set(pof.models.__all__)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count(name: str) -> None:
    assert sum(p.numel() for p in on_meta(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", TORCHVISION)
def test_state_dict_is_torchvisions(name: str) -> None:
    shapes = {key: tuple(value.shape) for key, value in on_meta(name).state_dict().items()}
    assert {key: shapes.get(key) for key in TORCHVISION[name]} == TORCHVISION[name]
    assert len(shapes) == ENTRIES[name]


def test_state_dict_of_the_cifar_resnet() -> None:
    keys = list(on_meta("resnet20").state_dict())
    assert keys[:2] == ["conv1.weight", "bn1.weight"]
    assert keys[-2:] == ["fc.weight", "fc.bias"]
    assert {"layer1.0.conv1.weight", "layer2.0.bn2.running_var", "layer3.2.conv2.weight"} < set(keys)
    assert not [key for key in keys if "downsample" in key], "option A has nothing to store"
    weights = [key for key in keys if key.endswith(("conv1.weight", "conv2.weight", "fc.weight"))]
    assert len(weights) == 20


@pytest.mark.parametrize("name", GIGA_MACS)
def test_multiply_adds_are_torchvisions(name: str) -> None:
    assert round(macs(on_meta(name), 224) / 1e9, 3) == GIGA_MACS[name]


def test_cifar_mobilenet_keeps_the_resolution_in_its_first_two_strides() -> None:
    model = on_meta("mobilenet_v2_cifar")
    assert isinstance(model, pof.models.MobileNetV2)
    sizes, x = [], torch.empty(1, 3, 32, 32, device="meta")
    for layer in model.features:
        x = layer(x)
        sizes.append(x.shape[-1])
    assert sizes == [32, 32, 32, 32] + [16] * 3 + [8] * 7 + [4] * 5
    with torch.device("meta"):
        plain = mobilenet_v2(num_classes=10).state_dict()
    assert {k: v.shape for k, v in model.state_dict().items()} == {k: v.shape for k, v in plain.items()}


@pytest.mark.parametrize("name", PARAMETERS)
def test_output_shape_follows_num_classes(name: str) -> None:
    with torch.device("meta"):
        model = MODELS[name](num_classes=7).eval()
        channels = 1 if name == "digits_convnet" else 3
        assert model(torch.empty(2, channels, 64, 64)).shape == (2, 7)


# Stem, seven stages, last convolution: multiples of 8, worked out by hand from the paper's table 2.
@pytest.mark.parametrize(
    ("width_mult", "widths"),
    [
        (0.35, [16, 8, 8, 16, 24, 32, 56, 112, 1280]),
        (0.75, [24, 16, 24, 24, 48, 72, 120, 240, 1280]),
        (1.4, [48, 24, 32, 48, 88, 136, 224, 448, 1792]),
    ],
)
def test_width_of_mobilenet(width_mult: float, widths: list[int]) -> None:
    with torch.device("meta"):
        model = mobilenet_v2(width_mult=width_mult).eval()
        x, seen = torch.empty(1, 3, 32, 32), []
        for layer in model.features:
            x = layer(x)
            seen.append(x.shape[1])
    repeats = [1, 1, 2, 3, 4, 3, 3, 1, 1]
    assert seen == [width for width, times in zip(widths, repeats, strict=True) for _ in range(times)]
    assert model.classifier[1].in_features == widths[-1]


def test_width_must_be_positive() -> None:
    with pytest.raises(PofError, match=r"width_mult=0 must be above 0"):
        mobilenet_v2(width_mult=0)


@pytest.mark.parametrize("constructor", [resnet18, resnet20, mobilenet_v2_cifar])
def test_convolutions_start_at_kaimings_scale(constructor: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model = constructor()
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    for conv in (module for module in convolutions if module.weight.numel() > 2000):
        # torch takes the fan of a depthwise convolution over all of its filters, as torchvision's init does.
        expected = (2 / (conv.out_channels * conv.kernel_size[0] ** 2)) ** 0.5
        assert conv.weight.std().item() == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("shape", [(2, 4, 6, 6), (1, 3, 5, 7), (2, 1, 1, 2)])
@pytest.mark.parametrize(("extra", "stride"), [(4, 2), (5, 2), (0, 1), (2, 3)])
def test_option_a_is_the_plain_loop(shape: tuple[int, ...], extra: int, stride: int) -> None:
    x = torch.randn(shape)
    shortcut = PadShortcut(shape[1], shape[1] + extra, stride)
    expected = option_a_by_loop(x, shape[1] + extra, stride)
    assert torch.equal(shortcut(x), expected)
    assert torch.equal(shortcut(x.to(memory_format=torch.channels_last)), expected)


def test_option_a_stays_in_channels_last() -> None:
    x = torch.randn(2, 16, 8, 8).to(memory_format=torch.channels_last)
    assert PadShortcut(16, 32, 2)(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", ["resnet20", "resnet50", "mobilenet_v2_cifar"])
def test_channels_last_computes_the_same(name: str) -> None:
    torch.manual_seed(0)
    model = randomise_norms(MODELS[name](num_classes=10)).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        contiguous = model(x)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        last = model(x.to(memory_format=torch.channels_last))
    # Relative to the largest logit: an untrained network's are not of order 1.
    assert (contiguous - last).abs().max() <= 1e-4 * contiguous.abs().max()


@pytest.mark.parametrize("name", ["resnet20", "resnet50", "mobilenet_v2_cifar"])
def test_a_step_reaches_every_parameter_and_lowers_the_loss(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](num_classes=10).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    losses = []
    for seed_of_dropout in (0, 0):
        torch.manual_seed(seed_of_dropout)
        loss = nn.functional.cross_entropy(model(x), y)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.item())
        assert not [key for key, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        assert not [key for key, p in model.named_parameters() if p.grad is not None and not p.grad.any()]
        optimiser.step()
    assert losses[1] < losses[0]


@pytest.mark.parametrize("name", ["resnet20", "resnet18", "resnet50", "mobilenet_v2"])
def test_fx_traces_the_model(name: str) -> None:
    model = on_meta(name)
    traced, x = fx.symbolic_trace(model), torch.empty(3, 3, 32, 32, device="meta")
    assert traced(x).shape == model(x).shape
    assert set(traced.state_dict()) == set(model.state_dict())


def test_fx_computes_the_same() -> None:
    torch.manual_seed(0)
    model = randomise_norms(resnet20()).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(fx.symbolic_trace(model)(x), model(x))


def test_export_with_a_dynamic_batch() -> None:
    torch.manual_seed(0)
    model = randomise_norms(resnet20()).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (torch.randn(2, 3, 32, 32),), dynamic_shapes=({0: batch},))
    exported = program.module()
    for size in (1, 5):
        x = torch.randn(size, 3, 32, 32)
        assert torch.allclose(exported(x), model(x), atol=1e-5)


def test_a_copy_loads_strictly_and_agrees() -> None:
    torch.manual_seed(0)
    first = randomise_norms(resnet20()).eval()
    second = resnet20().eval()
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(first(x), second(x))


def test_stride_of_the_bottleneck_is_on_its_3x3() -> None:
    modules = dict(on_meta("resnet50").named_modules())
    conv1, conv2 = modules["layer2.0.conv1"], modules["layer2.0.conv2"]
    assert isinstance(conv1, nn.Conv2d)
    assert isinstance(conv2, nn.Conv2d)
    assert (conv1.stride, conv2.stride) == ((1, 1), (2, 2))


def test_models_import_torch_and_pof_only() -> None:
    files = list(Path(pof.models.__file__).parent.glob("*.py"))
    assert len(files) == 5
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            roots = {name.split(".")[0] for name in names}
            assert roots <= {"torch", "pof"} | sys.stdlib_module_names
