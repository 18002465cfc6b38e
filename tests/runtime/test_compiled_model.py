"""`pof.compile`: the same outputs for any model, faster where it can be, and never a surprise."""

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.core.library import SWITCH, core
from pof.errors import PofError
from pof.runtime import compiled_model as compiled
from pof.runtime import engine_choice as choice
from pof.runtime.fair_timing import in_turns

pytestmark = pytest.mark.skipif(core() is None, reason="the core was not built")


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the sparse kernels also where they are not faster."""
    monkeypatch.setattr(choice, "MARGIN", 0.0)
    monkeypatch.setattr(choice, "ROUNDS", 1)
    monkeypatch.setattr(choice, "SECONDS", 0.0)


def lively(model: nn.Module) -> nn.Module:
    """With BatchNorm that does something."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()


def check(fast: compiled.CompiledModel, model: nn.Module, *inputs: Tensor) -> None:
    with torch.no_grad():
        wanted = model(*inputs)
    found = fast(*inputs)
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("name", "size"),
    [("resnet20", 32), ("resnet18", 64), ("resnet50", 64), ("mobilenet_v2", 64), ("digits_convnet", 8)],
)
def test_networks_at_any_batch(name: str, size: int) -> None:
    model = lively(getattr(pof.models, name)())
    channels = 1 if name == "digits_convnet" else 3
    elastic = pof.Elastic(model)
    elastic.prune(0.8)
    fast = pof.compile(model, torch.randn(1, channels, size, size))
    for batch in (1, 2, 9, 16):
        check(fast, model, torch.randn(batch, channels, size, size))
    elastic.prune(0.5)
    fast.update()
    check(fast, model, torch.randn(2, channels, size, size))


class Odd(nn.Module):
    """Operations that the runtime does not know, several uses of one value, two inputs, constants."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, (3, 1), padding=(1, 0), dilation=1)
        self.grouped = nn.Conv2d(8, 16, 3, stride=2, padding=2, dilation=2, groups=4)
        self.valid = nn.Conv2d(16, 4, 5)
        self.head = nn.Linear(4, 6)
        self.register_buffer("scale", torch.tensor([1.0, -2.0, 3.0]).reshape(1, 3, 1, 1))

    def forward(self, images: Tensor, weight: Tensor) -> Tensor:
        hidden = self.first(images * self.scale)
        gate = torch.sigmoid(hidden)
        hidden = self.second(hidden) + hidden
        hidden = F.gelu(hidden * gate) + torch.roll(hidden, 1, 3)
        hidden = F.relu(self.grouped(hidden))
        hidden = self.valid(hidden).clamp(-1, 1)
        rows = hidden.mean((2, 3))
        return self.head(rows).softmax(1) * weight + hidden.amax()


@pytest.mark.usefixtures("always")
def test_a_net_with_operations_that_are_not_known() -> None:
    torch.manual_seed(1)
    model = Odd().eval()
    pof.Elastic(model, include=("*",)).prune(0.6)
    images, weight = torch.randn(2, 3, 19, 23), torch.rand(2, 1)
    fast = pof.compile(model, (images, weight))
    check(fast, model, images, weight)
    check(fast, model, torch.randn(11, 3, 19, 23), torch.rand(11, 1))


@pytest.mark.usefixtures("always")
def test_a_transformer_block() -> None:
    torch.manual_seed(2)
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    pof.Elastic(model).prune(0.8)
    tokens = torch.randn(3, 7, 32)
    fast = pof.compile(model, tokens)
    check(fast, model, tokens)


@pytest.mark.usefixtures("always")
def test_all_zero_layers_and_one_pixel() -> None:
    model = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 2, 1)).eval()
    nn.init.zeros_(model[0].weight)
    fast = pof.compile(model, torch.randn(1, 3, 1, 1))
    check(fast, model, torch.randn(1, 3, 1, 1))


@pytest.mark.usefixtures("always")
def test_it_keeps_the_weights_that_it_was_compiled_from() -> None:
    model = lively(pof.models.resnet20())
    images = torch.randn(2, 3, 32, 32)
    fast = pof.compile(model, images)
    before = fast(images)
    pof.Elastic(model).prune(0.9)
    assert torch.equal(fast(images), before)
    fast.update()
    check(fast, model, images)
    results = [fast(images), fast(torch.randn(2, 3, 32, 32))]
    assert torch.equal(results[0], fast(images)), "results are not overwritten by later calls"


@pytest.mark.usefixtures("always")
def test_several_threads_at_once() -> None:
    model = lively(pof.models.resnet20())
    pof.Elastic(model).prune(0.8)
    inputs = [torch.randn(batch, 3, 32, 32) for batch in (1, 2, 8, 1)]
    fast = pof.compile(model, inputs[0], threads=2)
    wanted = [fast(images) for images in inputs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(15):
            if not torch.equal(fast(inputs[number]), wanted[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_engines_take_turns_so_that_a_busy_moment_hits_all_of_them() -> None:
    called: list[str] = []
    found = in_turns([lambda: called.append("torch"), lambda: called.append("sparse")], 3)
    assert called == ["torch", "sparse"] * 4, "once to warm up, then in turns"
    assert len(found) == 2


def test_where_nothing_is_gained_torch_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MARGIN", 1e9)
    model = lively(pof.models.resnet20())
    images = torch.randn(2, 3, 32, 32)
    fast = pof.compile(model, images)
    check(fast, model, images)
    assert fast.speedup() == 1.0
    assert "gains nothing" in fast.summary()


@pytest.mark.usefixtures("always")
def test_the_summary() -> None:
    model = lively(pof.models.resnet20())
    pof.Elastic(model).prune(0.75)
    fast = pof.compile(model, torch.randn(1, 3, 32, 32))
    rows = fast.times()
    assert [row.name for row in rows][:2] == ["conv1", "layer1.0.conv1"]
    assert rows[1].sparsity == pytest.approx(0.75, abs=0.01)
    text = fast.summary()
    assert "layer3.2.conv2  conv 3x3" in text
    assert max(map(len, text.splitlines())) < 120
    assert "whole model" in text


def test_a_model_in_training_mode_is_refused() -> None:
    with pytest.raises(PofError, match=r"call model\.eval\(\) first"):
        pof.compile(pof.models.resnet20(), torch.randn(1, 3, 32, 32))


def test_a_model_that_cannot_be_exported() -> None:
    class Branch(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if float(x.sum()) > 0 else x

    with pytest.raises(PofError, match="cannot be exported"):
        pof.compile(Branch().eval(), torch.ones(2, 2))


@pytest.fixture
def no_core(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(SWITCH, "1")
    core.cache_clear()
    yield
    monkeypatch.undo()
    core.cache_clear()


@pytest.mark.usefixtures("no_core")
def test_without_the_core_the_error_says_what_to_do() -> None:
    with pytest.raises(PofError, match="install a C compiler"):
        pof.compile(pof.models.resnet20().eval(), torch.randn(1, 3, 32, 32))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.LeakyReLU()], ids=["relu", "gelu", "leaky"])
@pytest.mark.parametrize("pooling", ["mean", "pool"])
def test_a_linear_layer_behind_any_activation_and_pooling(activation: nn.Module, pooling: str) -> None:
    """Features that torch averaged are taken as images of one pixel too, or the whole plan would be given up."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.activation, self.fc = nn.Conv2d(3, 16, 3), activation, nn.Linear(16, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.activation(self.conv(x))
            x = x.mean((2, 3)) if pooling == "mean" else torch.flatten(nn.functional.adaptive_avg_pool2d(x, 1), 1)
            return self.fc(x)

    model, x = Head().eval(), torch.randn(4, 3, 8, 8)
    fast = pof.compile(model, x)
    (chosen,) = fast._choices.values()
    assert chosen.plan is not None, "no value was unforeseen"
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
