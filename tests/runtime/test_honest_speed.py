"""The speed that is reported is over the user's own model; where nothing is gained, that model runs."""

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pof
from pof.runtime import engine_choice


class Slow(nn.Module):
    """A model that no engine makes faster: its time is spent in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).tanh()


def real_ratio(fast: Any, model: nn.Module, x: Tensor, rounds: int = 15) -> float:
    """The user's own measure: least times, in turns."""
    best = [float("inf")] * 2
    with torch.no_grad():
        for _ in range(rounds):
            for place, call in enumerate((model, fast)):
                start = time.perf_counter()
                call(x)
                best[place] = min(best[place], time.perf_counter() - start)
    return best[0] / best[1]


def test_a_model_that_gains_nothing_is_called_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "MARGIN", 1e9)
    model, x = Slow().eval(), torch.randn(2, 4)
    fast = pof.compile(model, x)
    assert fast.speedup() == 1.0
    assert "the plain model is used" in fast.summary()
    calls: list[int] = []
    fast._frozen.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(fast(x), model(x))
    assert calls == [1]


def test_it_keeps_the_weights_that_it_was_compiled_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "MARGIN", 1e9)
    model, x = Slow().eval(), torch.randn(2, 4)
    fast = pof.compile(model, x)
    before = fast(x).clone()
    with torch.no_grad():
        model.fc.weight.mul_(2)
    assert torch.equal(fast(x), before)
    fast.update()
    assert torch.equal(fast(x), model(x))


def test_what_turns_out_slower_is_not_used_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_choice, "MARGIN", 0.0)
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).eval(), torch.randn(2, 64)
    fast = pof.compile(model, x)
    fast.update()
    monkeypatch.setattr(
        engine_choice.EngineChoice, "times", lambda *_: engine_choice.Times((), plain=1.0, compiled=1.25)
    )
    assert fast.speedup() == 1.0
    assert "x as fast" not in fast.summary()
    assert torch.equal(fast(x), model(x))


def test_the_reported_speed_is_what_the_user_sees() -> None:
    model = pof.models.resnet20().eval()
    pof.Elastic(model).prune(0.9)
    x = torch.randn(4, 3, 32, 32)
    fast = pof.compile(model, x, threads=1)
    reported = fast.speedup()
    assert reported > 1.2
    assert reported == pytest.approx(real_ratio(fast, model, x), rel=0.35), "on a busy machine too"


def test_prepare_does_beforehand_what_a_first_call_would() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)).eval()
    fast = pof.compile(model, torch.randn(1, 3, 16, 16))
    assert len(fast._choices) == 1
    fast.prepare(torch.randn(5, 3, 16, 16))
    assert len(fast._choices) == 2
    x = torch.randn(5, 3, 16, 16)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(fast._choices) == 2


@pytest.mark.parametrize("name", ["Llama", "GPT2", "T5"])
def test_models_that_return_a_cache_compile_as_they_come(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    ids = torch.randint(3, 90, (2, 6))
    small = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 99,
    }
    inputs: dict[str, Tensor] = {"input_ids": ids}
    if name == "Llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**small, num_key_value_heads=2))
    elif name == "GPT2":
        config = transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.T5Config(d_model=32, d_ff=48, num_layers=2, num_heads=4, d_kv=8, vocab_size=99)
        model, inputs = transformers.T5ForConditionalGeneration(config), {**inputs, "decoder_input_ids": ids}
    model.eval()
    assert model.config.use_cache
    fast = pof.compile(model, inputs)
    with torch.no_grad():
        torch.testing.assert_close(fast(**inputs).logits, model(**inputs).logits, rtol=2e-5, atol=2e-5)
    assert model.config.use_cache, "the user's own model is not touched"
