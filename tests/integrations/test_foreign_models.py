"""Models that others wrote, times everything that `pof` does with a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import pof
from pof.core.library import core
from pof.runtime import engine_choice as choice
from tests.small_models import assert_bit_equal

SPARSITY = 0.7
VOCABULARY, LABELS = 40, 3
SMALL_BODY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


# The models


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, num_labels=LABELS, **SMALL_BODY)
    return transformers.BertForSequenceClassification(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=LABELS, **SMALL_BODY)
    return transformers.ViTForImageClassification(config)


def resnet() -> nn.Module:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=LABELS
    )
    return transformers.ResNetForImageClassification(config)


def mobilenet_v2() -> nn.Module:
    config = transformers.MobileNetV2Config(image_size=32, depth_multiplier=0.25, num_labels=LABELS)
    return transformers.MobileNetV2ForImageClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def encoder_decoder() -> nn.Module:
    return nn.Transformer(16, 2, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=32, batch_first=True)


def audio_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(1, 8, 9, stride=4),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Conv1d(8, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=4),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, LABELS),
    )


class LSTMClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.head = nn.Linear(16, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.body = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.head = nn.Linear(16, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        embedded = self.embed(words)
        return self.head(embedded + self.body(embedded))


Inputs = tuple[Tensor, ...]


def words() -> Inputs:
    return (torch.randint(VOCABULARY, (2, 7)),)


def images() -> Inputs:
    return (torch.randn(2, 3, 32, 32),)


def vectors() -> Inputs:
    return torch.randn(2, 5, 16), torch.randn(2, 4, 16)


def sound() -> Inputs:
    return (torch.randn(2, 1, 200),)


def series() -> Inputs:
    return (torch.randn(2, 6, 8),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Inputs]]] = {
    "bert": (bert, words),
    "vit": (vit, images),
    "resnet": (resnet, images),
    "mobilenet_v2": (mobilenet_v2, images),
    "gpt2": (gpt2, words),
    "transformer": (encoder_decoder, vectors),
    "audio": (audio_net, sound),
    "lstm": (LSTMClassifier, series),
    "tied": (TiedLanguageModel, words),
}

PLANNED = {
    "bert": 14,
    "vit": 13,
    "resnet": 6,
    "mobilenet_v2": 52,
    "gpt2": 8,
    "transformer": 10,
    "audio": 3,
    "lstm": 1,
    "tied": 2,
}
"""How many weights are pruned: every linear and convolution but the first; the LSTM's own and tied ones are not."""


def built(name: str, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return MODELS[name][0]()


def inputs_of(name: str) -> Inputs:
    torch.manual_seed(1)
    return MODELS[name][1]()


def tensor_of(output: Any) -> Tensor:
    """The logits of a Hugging Face model, or what a plain one gives."""
    return output if isinstance(output, Tensor) else output.logits


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# The operations


def plan(name: str, folder: Path) -> None:
    chosen = pof.plan(built(name))
    assert len(chosen) == PLANNED[name]
    assert f"{chosen.weights:,} weights in" in str(chosen)


def attach_and_train(name: str, folder: Path) -> None:
    model = built(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    attached = pof.attach(model, optimizer, tr=0.7, weight=0.5)
    planned = attached.penalty.weights
    before = {key: weight.detach().clone() for key, weight in planned.items()}
    output = tensor_of(model(*inputs_of(name))).flatten(0, -2)
    F.cross_entropy(output, torch.zeros(len(output), dtype=torch.long)).backward()
    optimizer.step()
    assert attached.step == 1
    for key, weight in planned.items():
        assert not torch.equal(weight, before[key]), key
        # GPT-2 keeps its matrices transposed.
        norms = [(w.T if name == "gpt2" else w).flatten(1).norm(dim=1) for w in (weight, before[key])]
        torch.testing.assert_close(*norms)


def prune(name: str, folder: Path) -> None:
    model = built(name).eval()
    elastic = pof.Elastic(model)
    elastic.prune(SPARSITY)
    for row in elastic.layers():
        assert row.zeros == round(SPARSITY * row.weights), row.name
    assert tensor_of(model(*inputs_of(name))).isfinite().all()


def recover(name: str, folder: Path) -> None:
    model = built(name).eval()
    elastic = pof.Elastic(model)
    elastic.recover(0.3, SPARSITY)
    for row in elastic.layers():
        assert row.zeros == round(0.3 * row.weights), row.name
        assert row.band == round(SPARSITY * row.weights) - row.zeros, row.name
        values = model.get_parameter(row.name).detach().abs()
        assert (values == values.new_tensor(row.alpha)).sum() >= row.band, row.name


def restore(name: str, folder: Path) -> None:
    model = built(name)
    dense = weights_of(model)
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(0.9)
    elastic.recover(0.3, SPARSITY)
    elastic.restore()
    assert_bit_equal(weights_of(model), dense)


def save_and_load(name: str, folder: Path) -> None:
    model, fresh = built(name), built(name, seed=1)
    pof.save(model, folder / "model.pof")
    elastic = pof.Elastic(model)
    for sparsity in (SPARSITY, 0.0):
        elastic.prune(sparsity)
        pof.load(folder / "model.pof", into=fresh, sparsity=sparsity)
        assert_bit_equal(weights_of(fresh), weights_of(model))


def export(name: str, folder: Path) -> None:
    model, inputs = built(name), inputs_of(name)
    elastic = pof.Elastic(model)
    with elastic.at(SPARSITY):
        pruned = weights_of(model)
        pof.export(model, folder / "model.safetensors")
        assert_bit_equal(dict(sorted(load_file(folder / "model.safetensors").items())), dict(sorted(pruned.items())))
        for ending in ("pt2", "onnx"):
            found = pof.export(model, folder / f"model.{ending}", inputs)
            assert found.deviation is not None
            assert found.deviation < 1e-4
        assert_bit_equal(weights_of(model), pruned)


def compile(name: str, folder: Path) -> None:
    if core() is None:
        pytest.skip("the core was not built")
    model, inputs = built(name).eval(), inputs_of(name)
    # A cache of keys and values is not computed: it is no part of the compiled model's outputs.
    assert_compiled_alike(model, inputs, **({"use_cache": False} if name == "gpt2" else {}))


def assert_compiled_alike(model: nn.Module, inputs: Inputs, **options: bool) -> None:
    thinned(model)
    fast = pof.compile(model, inputs)
    assert {row.engine for row in fast.times()} == {"sparse"}
    for size in (2, 3):
        batch = tuple(value.repeat_interleave(2, dim=0)[:size] for value in inputs)
        with torch.no_grad():
            wanted = model(*batch, **options)
        found = fast(*batch)
        assert type(found) is type(wanted)
        torch.testing.assert_close(pytree.tree_leaves(found), pytree.tree_leaves(wanted), rtol=1e-4, atol=1e-4)


def thinned(model: nn.Module) -> None:
    """Prune every matrix by hand: `pof.compile` takes models too that `pof.plan` does not know."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.masked_fill_(weight.abs() < weight.abs().median(), 0.0)


OPERATIONS = {f.__name__: f for f in (plan, attach_and_train, prune, recover, restore, save_and_load, export, compile)}


@pytest.fixture
def _always_the_sparse_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which engine is faster on layers this small is noise: let the clock say that our kernels take no time."""
    monkeypatch.setattr(choice, "_step_times", lambda plan, leaves, work: dict.fromkeys(dict(work.steps), 0.0))
    monkeypatch.setattr(choice, "MARGIN", 0.0)
    monkeypatch.setattr(choice, "ROUNDS", 1)
    monkeypatch.setattr(choice, "SECONDS", 0.0)


@pytest.mark.usefixtures("_always_the_sparse_kernels")
# pof's own word on the tied language model: its head is left out.
@pytest.mark.filterwarnings("ignore:.*head.weight is not pruned. it is tied to an embedding:UserWarning")
# and on the LSTM.
@pytest.mark.filterwarnings("ignore:.*recurrent layers are not pruned:UserWarning")
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("model", MODELS)
def test_matrix(model: str, operation: str, tmp_path: Path) -> None:
    OPERATIONS[operation](model, tmp_path)


def test_what_is_not_pruned_is_said() -> None:
    with pytest.warns(UserWarning, match="recurrent layers are not pruned"):
        chosen = pof.plan(built("lstm"))
    assert [name for name, _ in chosen.left_out] == [
        "lstm.weight_ih_l0", "lstm.weight_hh_l0", "lstm.weight_ih_l1", "lstm.weight_hh_l1",
    ]  # fmt: skip
    assert len(pof.plan(built("lstm"), exclude="lstm")) == 1, "and no word when that is what was asked for"


def test_rows_of_gpt2_are_its_output_units() -> None:
    with pytest.warns(UserWarning, match="tied to an embedding"):
        attached = pof.attach(model := built("gpt2"), torch.optim.SGD(model.parameters(), lr=0.1), tr=0.7)
    weight = model.get_parameter("transformer.h.0.mlp.c_fc.weight")
    assert weight.shape == (16, 64)
    assert attached.sphere is not None
    assert attached.sphere.state_dict()["transformer.h.0.mlp.c_fc.weight"].numel() == 64


@pytest.mark.skipif(core() is None, reason="the core was not built")
@pytest.mark.usefixtures("_always_the_sparse_kernels")
def test_inputs_by_name_are_compiled() -> None:
    model = built("bert").eval()
    thinned(model)
    inputs = {"input_ids": words()[0], "token_type_ids": torch.ones(2, 7, dtype=torch.long)}
    fast = pof.compile(model, inputs)
    for given in (inputs, {"input_ids": words()[0]}):
        with torch.no_grad():
            torch.testing.assert_close(fast(**given).logits, model(**given).logits, rtol=1e-4, atol=1e-4)
    with pytest.raises(pof.PofError, match="the model cannot be exported: You must specify"):
        fast(words=words()[0])
