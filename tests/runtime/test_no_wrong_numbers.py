"""What once gave a wrong number without a word: each model has torch's outputs, or is refused."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import pof
from pof.core.library import core
from pof.runtime import compiled_model
from pof.runtime import engine_choice as choice

pytestmark = [
    pytest.mark.skipif(core() is None, reason="the core was not built"),
    pytest.mark.usefixtures("_kernels_always"),
]
Forward = Callable[..., Any]


class Net(nn.Module):
    """Two layers, a counter, and a forward that is given."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("counter", torch.zeros(1))
        self.scale, self.calls = 2.0, 0
        self.given = forward
        self.eval()

    def forward(self, *inputs: Any) -> Any:
        return self.given(self, *inputs)


def same(model: nn.Module, fast: Any, *inputs: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(fast(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "condition", [lambda n: n % 2 == 0, lambda n: n != 6, lambda n: n < 5, lambda n: n * 4 % 3 != 0, lambda n: n > 3]
)
def test_branches_on_the_size_of_the_batch(condition: Callable[[int], bool]) -> None:
    model = Net(lambda s, x: s.a(x) if condition(x.shape[0]) else s.b(x) + 1)
    fast = pof.compile(model, torch.randn(4, 8))
    for batch in (2, 3, 6, 7, 1, 4, 5):
        same(model, fast, torch.randn(batch, 8))


def test_branches_on_two_sizes() -> None:
    model = Net(lambda s, x, y: s.a(x).sum() + y.sum() if len(x) > len(y) else s.b(x).sum() - y.sum())
    fast = pof.compile(model, (torch.randn(4, 8), torch.randn(2, 8)))
    for sizes in ((3, 2), (2, 3), (5, 9)):
        same(model, fast, *(torch.randn(size, 8) for size in sizes))


def test_statistics_that_are_written_are_not_folded() -> None:
    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.conv(x)
            self.norm.running_mean.mul_(0.5).add_(h.mean((0, 2, 3)), alpha=0.5)
            return self.norm(h)

    model, x = Moving().eval(), torch.randn(2, 3, 8, 8)
    fast = pof.compile(model, x)
    for _ in range(3):
        same(model, fast, x)


def test_a_relu_that_one_of_two_users_has() -> None:
    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            h = self.norm(self.conv(x))
            kept = F.dropout(h, training=False)
            return F.relu(h), kept + 1, F.silu(kept * 1, inplace=True)

    model, x = Fork().eval(), torch.randn(2, 3, 8, 8)
    same(model, pof.compile(model, x), x)


def test_update_refuses_training_mode() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval()
    fast = pof.compile(model, torch.randn(2, 8))
    model.train()
    with pytest.raises(pof.PofError, match=r"call model\.eval\(\) first"):
        fast.update()
    model.eval()
    fast.update()


@pytest.mark.parametrize("margin", [0.0, 1e9])
def test_trial_runs_do_not_count(margin: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MARGIN", margin)

    def counts(s: Any, x: Tensor) -> Tensor:
        s.counter += 1
        return s.a(x) + s.counter

    model = Net(counts)
    fast = pof.compile(model, torch.randn(2, 8))
    assert model.counter.item() == 0, "the user's own model is not run"
    fast.summary()
    for batch in (2, 3, 2):
        # All sizes count together, as they do in the model.
        same(model, fast, torch.randn(batch, 8))
    fast.update()
    same(model, fast, torch.randn(2, 8))


def test_a_model_that_counts_in_a_plain_attribute_runs_itself() -> None:
    def counts(s: Any, x: Tensor) -> Tensor:
        s.calls += 1
        return s.a(x) * s.calls

    model = Net(counts)
    with pytest.warns(UserWarning, match="the plain model is used"):
        fast = pof.compile(model, torch.randn(2, 8))
    for _ in range(3):
        same(model, fast, torch.randn(2, 8))


def test_weights_that_are_untied_before_an_update() -> None:
    model = Net(lambda s, x: s.b(s.a(x)))
    model.b.weight = model.a.weight
    x = torch.randn(2, 8)
    fast = pof.compile(model, x)
    same(model, fast, x)
    model.b.weight = nn.Parameter(torch.randn(8, 8))
    fast.update()
    same(model, fast, x)
    model.b.weight = model.a.weight
    fast.update()
    same(model, fast, x)


def test_plain_attributes_that_change_before_an_update() -> None:
    model = Net(lambda s, x: s.a(x) * s.scale + s.shift)
    model.shift = torch.ones(8)
    x = torch.randn(2, 8)
    fast = pof.compile(model, x)
    model.scale = 3.0
    fast.update()
    same(model, fast, x)
    model.shift.add_(1)
    fast.update()
    same(model, fast, x)


def test_hooks_and_modules_that_change_before_an_update() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    x = torch.randn(2, 8)
    fast = pof.compile(model, x)
    handle = model[0].register_forward_hook(lambda module, inputs, output: output * 2)
    fast.update()
    same(model, fast, x)
    handle.remove()
    model[1] = nn.GELU().eval()
    fast.update()
    same(model, fast, x)


def test_a_value_that_is_cached_in_an_attribute() -> None:
    def cached(s: Any, x: Tensor) -> Tensor:
        if getattr(s, "doubled", None) is None:
            s.doubled = s.a.weight.detach() * 2
        return x @ s.doubled

    model, x = Net(cached), torch.randn(2, 8)
    fast = pof.compile(model, x)
    same(model, fast, x)
    with torch.no_grad():
        model.a.weight.mul_(3)
    model.doubled = None
    fast.update()
    same(model, fast, x)


def test_an_update_of_weights_alone_exports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pof.models.digits_convnet().eval()
    elastic = pof.Elastic(model)
    x = torch.randn(2, 1, 8, 8)
    fast = pof.compile(model, x)
    monkeypatch.setattr(compiled_model, "capture", lambda *_: pytest.fail("it was exported again"))
    for sparsity in (0.5, 0.9):
        elastic.prune(sparsity)
        fast.update()
        same(model, fast, x)


def test_outputs_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Net(lambda s, x: s.a(x)), torch.randn(2, 8)
    real = choice.EngineChoice.run
    monkeypatch.setattr(choice.EngineChoice, "run", lambda *args: (real(*args)[0] + 1, real(*args)[1]))
    with pytest.warns(UserWarning, match="off the model's"):
        fast = pof.compile(model, x)
    same(model, fast, x)


def test_calls_beside_the_choice_for_another_size() -> None:
    model = Net(lambda s, x: s.a(x))
    fast = pof.compile(model, torch.randn(2, 8))
    threads = [threading.Thread(target=same, args=(model, fast, torch.randn(n % 4 + 2, 8))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
