"""Models that reuse, return, change or reorder values: the same outputs as torch's, or a clear error."""

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import pof
from pof.core.library import core
from pof.errors import PofError
from pof.runtime import compiled_model as compiled
from pof.runtime import engine_choice as choice

pytestmark = [
    pytest.mark.skipif(core() is None, reason="the core was not built"),
    pytest.mark.usefixtures("_kernels_always"),
]
Forward = Callable[..., Any]


class Net(nn.Module):
    """Convolutions a, b, c, d of as many channels, a linear layer, a counter, and a forward that is given."""

    def __init__(self, forward: Forward, channels: int = 8, **settings: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        settings = {"padding": 1, **settings}
        for name in "abcd":
            conv = nn.Conv2d(channels, channels, 3, **settings)
            with torch.no_grad():
                conv.weight.masked_fill_(torch.rand_like(conv.weight) < 0.8, 0.0)
            setattr(self, name, conv)
        self.linear = nn.Linear(channels, 5)
        self.register_buffer("counter", torch.zeros(2))
        self.given = forward
        self.eval()

    def forward(self, *inputs: Any) -> Any:
        return self.given(self, *inputs)


def same(net: nn.Module, *inputs: Any, fast: compiled.CompiledModel | None = None) -> compiled.CompiledModel:
    """Compare with torch; also what becomes of the inputs and the model."""
    fast = fast or pof.compile(net, copy.deepcopy(inputs))
    theirs, ours = copy.deepcopy(inputs), copy.deepcopy(inputs)
    with torch.no_grad():
        wanted = net(*theirs)
    found = fast(*ours)
    for one, other in ((found, wanted), (ours, theirs)):
        for mine, other_leaf in zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True):
            if isinstance(other_leaf, Tensor):
                torch.testing.assert_close(mine, other_leaf, rtol=1e-4, atol=1e-4)
                assert mine.dtype is other_leaf.dtype
            else:
                assert mine == other_leaf
    return fast


def two(batch: int = 3, channels: int = 8, size: int = 9) -> Tensor:
    return torch.randn(batch, channels, size, size)


def residual_of_itself(s: Any, x: Tensor) -> Tensor:
    h = s.a(x)
    h = s.b(h) + h
    return s.d(s.c(h).relu()) + h


def returns_features(s: Any, x: Tensor) -> Any:
    a = s.a(x)
    return a, s.c(s.b(a)), {"again": a}


def in_place_through_a_view(s: Any, x: Tensor) -> Tensor:
    o = x * 1
    a = s.a(x)
    v = o[:, :2]
    v.relu_()
    return a + o


def in_place_of_a_part(s: Any, x: Tensor) -> Any:
    h = x * 1
    a = s.a(h)
    h[:, :2].relu_()
    p, q = h.chunk(2, 1)
    p += q
    return a, s.b(h), h


def in_place_of_an_output(s: Any, x: Tensor) -> Tensor:
    y = s.a(x)
    y[:, :2].relu_()
    return s.b(y)


def writes_to_its_input(s: Any, x: Tensor) -> Tensor:
    v = x[:, :2]
    v += 1
    return s.a(x)


def with_views(s: Any, x: Tensor) -> Any:
    h = s.a(x)
    return h.view(h.shape[0], -1), s.linear(h.permute(0, 2, 3, 1).contiguous().view(-1, 8)).view(-1, 5)


def of_another_sign(s: Any, x: Tensor) -> Tensor:
    return s.b(torch.complex(x, x).conj().imag)


def with_strides(s: Any, x: Tensor) -> Tensor:
    h = s.a(x)
    return torch.as_strided(h.contiguous(), (4, 5), (7, 1)) * 2


def by_batch(s: Any, x: Tensor) -> Tensor:
    return s.a(x) if x.shape[0] < 10 else s.b(x) + 1


def by_size(s: Any, x: Tensor) -> Any:
    return s.a(x) / x.shape[2], F.interpolate(s.b(x), size=x.shape[2] * 2)


def chosen_images(s: Any, x: Tensor) -> Tensor:
    return s.a(x[x[:, 0, 0, 0] > 0])


def mean_and_linear(s: Any, x: Tensor) -> Tensor:
    return s.linear(s.a(x).relu().mean((2, 3)))


def pool_and_linear(s: Any, x: Tensor) -> Any:
    pooled = F.adaptive_avg_pool2d(s.a(x), 1)
    return s.linear(torch.flatten(pooled, 1)), pooled


@pytest.mark.parametrize(
    "forward",
    [residual_of_itself, returns_features, in_place_through_a_view, in_place_of_a_part, in_place_of_an_output,
     writes_to_its_input, with_views, of_another_sign, with_strides, by_batch, by_size, mean_and_linear,
     pool_and_linear],
)  # fmt: skip
@pytest.mark.parametrize("batch", [1, 2, 17])
def test_any_use_of_values(forward: Forward, batch: int) -> None:
    net = Net(forward)
    fast = same(net, two(batch))
    same(net, two(batch), fast=fast)


def test_sizes_that_the_model_looks_at() -> None:
    for forward in (by_batch, by_size):
        net = Net(forward)
        fast = same(net, two(2))
        for images in (two(12), two(1), two(2, size=12), two(9)):
            same(net, images, fast=fast)


def test_buffers_of_strided_convolutions_are_not_mixed_up() -> None:
    net = Net(lambda s, x: (s.a(x), s.b(x[:, :, :31, :31]), s.c(x)), stride=2)
    fast = same(net, two(2, size=32))
    same(net, two(2, size=32), fast=fast)


def test_sizes_that_depend_on_data() -> None:
    net, images = Net(chosen_images), two(7)
    images[:, 0, 0, 0] = torch.tensor([1.0, -1, -1, -1, -1, -1, -1])
    fast = same(net, images)
    same(net, images.abs(), fast=fast)
    same(net, -images.abs(), fast=fast)


def test_changes_of_inputs_and_buffers_happen_once() -> None:
    def counts(s: Any, x: Tensor) -> Tensor:
        s.counter.add_(1)
        part = s.counter[0]
        part += 1
        return s.a(x) + s.counter.sum()

    net = Net(counts)
    fast = pof.compile(net, two())
    images = two()
    for _ in range(3):
        torch.testing.assert_close(fast(images), net(images).detach(), rtol=1e-4, atol=1e-4)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3)).eval()
    example = two()
    before = example.clone()
    fast = pof.compile(model, example)
    assert torch.equal(example, before), "compiling leaves the example alone"
    same(model, two(), fast=fast)


def test_values_that_are_no_tensors() -> None:
    net = Net(lambda s, x, k, more: s.a(x) * k + (0 if more is None else more[0]["shift"]))
    fast = same(net, two(), 2.0, None)
    for inputs in (
        (two(), 3.0, None),
        (two(), 3, None),
        (two(), True, [{"shift": 5}]),
        (two(), 2.0, [{"shift": two()}]),
    ):
        same(net, *inputs, fast=fast)
    with pytest.raises(PofError, match="plain values"):
        fast(two(), set(), None)


def test_residuals_that_are_broadcast() -> None:
    net = Net(lambda s, x, y: s.a(x) + y)
    fast = same(net, two(2), two(1))
    same(net, two(5), two(1), fast=fast)
    same(net, two(5), two(5), fast=fast)
    same(net, two(2), torch.randn(2, 8, 1, 1), fast=fast)


def test_inputs_that_are_no_batch() -> None:
    same(Net(lambda s, x: s.a(x).reshape(4, -1)), two(4))
    same(Net(lambda s, x: s.a(x)), torch.randn(8, 9, 9))
    same(Net(lambda s, x: s.linear(x)), torch.randn(8))
    same(Net(lambda s, x, anchors: s.a(x).sum() + anchors), two(), torch.randn(10, 9))
    net = Net(lambda s, x: s.linear(x))
    same(net, torch.empty(0, 8), fast=same(net, torch.randn(3, 8)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_types(dtype: torch.dtype) -> None:
    net = Net(lambda s, x: s.b(s.a(x) + x).sum((2, 3)))
    net.to(dtype)
    same(net, two().to(dtype))
    mixed = Net(lambda s, x: s.a(x) + s.b(x.to(dtype)).to(dtype))
    mixed.b.to(dtype)
    same(mixed, two())


def test_named_padding() -> None:
    for kernel in (3, 4):
        model = nn.Sequential(nn.Conv2d(8, 8, kernel, padding="same"), nn.Conv2d(8, 8, kernel, padding="valid")).eval()
        fast = same(model, two())
        assert [row.name for row in fast.times()] == (["0", "1"] if kernel == 3 else ["1"])


def test_layers_too_large_for_the_kernels_run_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MOST_BYTES", 1000)
    fast = same(Net(lambda s, x: s.a(x)), two())
    assert {row.engine for row in fast.times()} == {"torch"}


def test_update_refuses_another_model() -> None:
    def replaced(change: Callable[[Any], None]) -> str:
        net = Net(residual_of_itself)
        fast = pof.compile(net, two())
        before = fast(torch.ones(1, 8, 9, 9))
        change(net)
        with pytest.raises(PofError, match="compile it again") as caught:
            fast.update()
        assert torch.equal(fast(torch.ones(1, 8, 9, 9)), before)
        return str(caught.value)

    assert "'a.weight'" in replaced(lambda net: setattr(net, "a", nn.Conv2d(8, 8, 5, padding=2)))
    assert "'a.bias'" in replaced(lambda net: setattr(net, "a", nn.Conv2d(8, 8, 3, padding=1, bias=False)))
    assert "float64" in replaced(lambda net: net.a.double())


def test_update_beside_calls_of_another_thread() -> None:
    net, images = Net(residual_of_itself, channels=32), two(2, 32, 16)
    fast = pof.compile(net, images)
    wanted = fast(images)
    wrong: list[float] = []

    def work() -> None:
        for _ in range(100):
            wrong.append(float((fast(images) - wanted).abs().max()))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        fast.update()
    assert max(wrong) < 1e-4


def test_the_summary_tells_what_is_now() -> None:
    net = Net(residual_of_itself)
    fast = pof.compile(net, two())
    assert fast.times()[0].sparsity == pytest.approx(0.8, abs=0.05)
    nn.init.ones_(net.a.weight)
    fast.update()
    assert fast.times()[0].sparsity == 0.0
    assert "a      conv 3x3   3x8x9x9  0%" in fast.summary()


def test_where_torch_runs_it_the_summary_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MARGIN", 1e9)
    fast = same(Net(residual_of_itself), two())
    assert {row.engine for row in fast.times()} == {"torch"}
    assert "sparse  " not in fast.summary()


def test_outputs_are_the_callers_own() -> None:
    net = Net(lambda s, x: (s.a(x), s.counter, x))
    images = two()
    for margin in (0.0, 1e9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choice, "MARGIN", margin)
            fast = pof.compile(net, images)
        first, counter, given = fast(images)
        assert given is images
        assert first.is_contiguous()
        counter.add_(5)
        assert fast(images)[1].tolist() == [0.0, 0.0]


def test_memory_is_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST_SIZES", 3)
    net = Net(residual_of_itself)
    fast = pof.compile(net, two(2))
    plans = []
    for batch in range(2, 9):
        fast(two(batch))
        plans.append(weakref.ref(next(reversed(fast._choices.values())).plan))
    gc.collect()
    assert sum(plan() is not None for plan in plans) == 3


def test_it_is_not_copied() -> None:
    fast = pof.compile(Net(residual_of_itself), two())
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(PofError, match="compile the copy"):
            attempt(fast)


def test_a_wrong_number_of_inputs() -> None:
    fast = pof.compile(nn.Sequential(nn.Conv2d(8, 8, 3)).eval(), two())
    with pytest.raises(PofError, match="cannot be exported"):
        fast(two(), two())
