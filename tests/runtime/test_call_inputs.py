"""Calls of compiled models: inputs by position and by name, and caches."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.runtime.call_inputs import CallInputs, InputOrder, asks_for_a_cache


class Several(nn.Module):
    """Takes inputs in every way that Python has."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(6, 4)

    def forward(
        self, x: Tensor, scale: float = 2.0, *, second: Tensor | None = None, first: Tensor | None = None, **more: Any
    ) -> Tensor:
        y: Tensor = self.one(x) * scale
        if second is not None:
            y = y + self.other(second)
        if first is not None:
            y = y * self.other(first)
        return y - more["third"] if "third" in more else y


def test_inputs_that_go_by_name_only() -> None:
    model, x, u, v = Several().eval(), torch.randn(3, 4), torch.randn(3, 6), torch.randn(3, 6)
    fast = pof.compile(model, {"x": x, "second": u})
    calls: list[dict[str, Any]] = [
        {"second": u},
        {"first": u},
        {"second": u, "first": v},
        {"first": v, "second": u},
        {"third": 1.0, "first": v},
        {"third": 2.0, "first": v},
        {"scale": 3.0, "first": v},
        {},
    ]
    for named in calls:
        torch.testing.assert_close(fast(x, **named), model(x, **named))
        torch.testing.assert_close(fast(**{**named, "x": x}), model(x, **named))
    assert fast.speedup(x, first=u) >= 1.0
    assert "as fast" in fast.summary(x=x, first=u) or "plain model" in fast.summary(x=x, first=u)


def test_the_order_of_inputs() -> None:
    order = InputOrder(Several().forward, "Several")
    assert order.of((1,), {}) == CallInputs((1,), {})
    assert order.of((), {"scale": 2, "x": 1}) == CallInputs((1, 2), {})
    assert order.of((1,), {"first": 3, "second": 2}) == CallInputs((1,), {"second": 2, "first": 3})
    assert list(order.of((1,), {"first": 3, "second": 2}).named) == ["second", "first"]
    assert list(order.of((1,), {"z": 1, "first": 3, "a": 2}).named) == ["first", "a", "z"]
    with pytest.raises(pof.PofError, match="Several does not take these inputs: missing"):
        order.of((), {"first": 3})
    with pytest.raises(pof.PofError, match="Several does not take these inputs"):
        order.of((1, 2, 3), {"first": 3})


def test_inputs_in_dicts_are_told_apart() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, inputs: dict[str, Tensor]) -> Tensor:
            found: Tensor = self.fc(inputs["a"]) if "a" in inputs else -self.fc(inputs["b"])
            return found

    model, x = Either().eval(), torch.randn(2, 4)
    fast = pof.compile(model, [{"a": x}])
    for name in "ab":
        torch.testing.assert_close(fast({name: x}), model({name: x}))


def test_what_asks_for_a_cache() -> None:
    assert asks_for_a_cache({"use_cache": True})
    assert asks_for_a_cache({"past_key_values": object()})
    assert asks_for_a_cache({"past_key_values": torch.ones(2)})
    assert not asks_for_a_cache({"use_cache": False, "past_key_values": None, "input_ids": torch.ones(2)})


def test_calls_with_a_cache_run_on_the_model() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    ids = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(0))
    fast = pof.compile(model, {"input_ids": ids})
    assert "past_key_values" not in fast(input_ids=ids)
    with torch.no_grad():
        begun = model(input_ids=ids[:, :5])
        wanted = model(input_ids=ids[:, 5:], past_key_values=copy.deepcopy(begun.past_key_values))
    with pytest.warns(UserWarning, match="a call with a cache of keys and values runs on the plain model"):
        found = fast(input_ids=ids[:, 5:], past_key_values=begun.past_key_values)
    torch.testing.assert_close(found.logits, wanted.logits)
    assert found.past_key_values.get_seq_length() == 8
    with pytest.raises(pof.PofError, match="leave use_cache and past_key_values out of the example"):
        pof.compile(model, {"input_ids": ids, "use_cache": True})
    with pytest.raises(pof.PofError, match="must be passed by name"):
        fast(ids, begun.past_key_values)
    hidden = fast(input_ids=ids, output_hidden_states=True)
    with torch.no_grad():
        torch.testing.assert_close(hidden.hidden_states, model(input_ids=ids, output_hidden_states=True).hidden_states)


def test_plain_values_that_are_equal_but_not_the_same() -> None:
    class Signed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor, sign: float = 0.0) -> Tensor:
            found: Tensor = self.fc(x) * math.copysign(1.0, sign)
            return found

    model, x = Signed().eval(), torch.randn(2, 4)
    fast = pof.compile(model, (x, 0.0))
    for sign in (0.0, -0.0, math.nan, 1, 1.0, True):
        torch.testing.assert_close(fast(x, sign), model(x, sign))


@pytest.mark.parametrize("example", [5, None, "images"])
def test_examples_that_are_none(example: Any) -> None:
    with pytest.raises(pof.PofError, match="pass a tensor, a tuple of inputs, or a dict"):
        pof.compile(Several().eval(), example)


def test_an_argument_that_is_called_like_a_cache() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor, past_key_values: Any = None) -> Tensor:
            found: Tensor = self.fc(x)
            return found if past_key_values is None else found + past_key_values

    model, x = Remembers().eval(), torch.randn(2, 4)
    fast = pof.compile(model, x)
    with pytest.warns(UserWarning, match="runs on the plain model"):
        torch.testing.assert_close(fast(x, past_key_values=x), model(x, x))
