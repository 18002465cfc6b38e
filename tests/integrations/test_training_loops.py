"""`pof.attach` and `pof.pruned` in other people's training loops, and pruning what came out of them.

The plain loop is the reference: what Lightning or accelerate train on the same batches is the same network. All small
networks run in float64, so that no mask differs by rounding.
"""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

import pof
from tests.small_models import assert_bit_equal

CLASSES, FEATURES, BATCH, STEPS = 4, 16, 32, 40
ATTACH: dict[str, Any] = {"tr": (0.9, 0.7), "steps": STEPS, "weight": 0.5}
BERT_ATTACH: dict[str, Any] = {"tr": 0.7, "weight": 0.5}
NESTED_AT = 0.8
Batch = tuple[Tensor, Tensor]
Step = Callable[[nn.Module, Optimizer, Batch], None]

LIGHTNING_WARNS = [
    # lightning 2.6 still calls what torch deprecated.
    "ignore:.*isinstance.treespec, LeafSpec.*:FutureWarning",
    # lightning would rather load these few batches in several processes.
    "ignore:.*does not have many workers:UserWarning",
]


def samples(count: int, seed: int) -> Batch:
    """Points around one centre a class: easy to tell apart."""
    centres = torch.randn(CLASSES, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + 0.9 * torch.randn(count, FEATURES, dtype=torch.float64, generator=generator), labels


def batches() -> list[Batch]:
    x, y = samples(BATCH * STEPS, seed=1)
    return list(zip(x.split(BATCH), y.split(BATCH), strict=True))


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES)]
    return nn.Sequential(*layers).double()


def sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.05, momentum=0.9)


def clean_step(model: nn.Module, optimizer: Optimizer, batch: Batch) -> None:
    x, y = batch
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def nested_step(model: nn.Module, optimizer: Optimizer, batch: Batch, sparsity: float = NESTED_AT) -> None:
    x, y = batch
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with pof.pruned(model, sparsity):
        F.cross_entropy(model(x), y).backward()
    optimizer.step()


def two_clean_passes(model: nn.Module, optimizer: Optimizer, batch: Batch) -> None:
    """What nested steps are compared with: as much training, nothing pruned."""
    nested_step(model, optimizer, batch, sparsity=0.0)


def plain_loop(step: Step = clean_step, attach: bool = False) -> nn.Sequential:
    model = small_model()
    optimizer = sgd(model)
    attached = pof.attach(model, optimizer, **ATTACH) if attach else None
    for batch in batches():
        step(model, optimizer, batch)
    assert attached is None or attached.step == STEPS
    return model


def loss_at(model: nn.Module, sparsity: float, **settings: Any) -> float:
    x, y = samples(1000, seed=2)
    with torch.no_grad(), pof.Elastic(model.eval(), **settings).at(sparsity):
        return F.cross_entropy(model(x), y).item()


def accuracy_at(model: nn.Module, sparsity: float, **settings: Any) -> float:
    x, y = samples(1000, seed=2)
    with torch.no_grad(), pof.Elastic(model.eval(), **settings).at(sparsity):
        return (model(x).argmax(1) == y).double().mean().item()


def row_norms(model: nn.Module) -> dict[str, Tensor]:
    return {name: weight.detach().norm(dim=1) for name, weight in pof.plan(model).parameters(model).items()}


def mean_cosine(model: nn.Module, tr: float = 0.7) -> float:
    """How near the weights are to their own pruning masks: what the penalty raises."""
    penalty = pof.Penalty(model, tr=tr)
    penalty(0)
    return penalty.mean_cosine


def assert_same_at_every_sparsity(model: nn.Module, reference: nn.Module) -> None:
    assert model.state_dict().keys() == reference.state_dict().keys()
    elastics = [pof.Elastic(m, magnitudes="unit") for m in (model, reference)]
    for sparsity in (0.0, 0.5, 0.8):
        for elastic in elastics:
            elastic.prune(sparsity)
        for name, value in model.state_dict().items():
            torch.testing.assert_close(value, reference.state_dict()[name], rtol=1e-6, atol=1e-8)


# The plain loop


def test_a_plain_loop() -> None:
    model, without = plain_loop(attach=True), plain_loop()
    assert mean_cosine(model) > mean_cosine(without) + 0.05
    for sparsity in (0.0, 0.5, 0.7):
        assert accuracy_at(model, sparsity, magnitudes="unit") > 0.98
    for name, norms in row_norms(small_model()).items():
        torch.testing.assert_close(row_norms(model)[name], norms)


def test_nested_in_a_plain_loop() -> None:
    assert loss_at(plain_loop(nested_step), NESTED_AT) < 0.5 * loss_at(plain_loop(two_clean_passes), NESTED_AT)


def test_nested_and_attach_together() -> None:
    model = plain_loop(nested_step, attach=True)
    assert mean_cosine(model) > mean_cosine(plain_loop(nested_step)) + 0.05
    assert accuracy_at(model, NESTED_AT) > 0.95
    for name, norms in row_norms(small_model()).items():
        torch.testing.assert_close(row_norms(model)[name], norms)


# Lightning


def lightning_module(attach: str = "") -> Any:
    import lightning.pytorch as lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_model()

        def training_step(self, batch: Batch, index: int) -> Tensor:
            x, y = batch
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> Optimizer:
            optimizer = sgd(self.net)
            if attach == "configure_optimizers":
                pof.attach(self, optimizer, **ATTACH)
            return optimizer

        def on_train_start(self) -> None:
            if attach == "on_train_start":
                pof.attach(self, self.optimizers(), **ATTACH)

    return Module()


def lightning_fit(module: Any, *callbacks: Any) -> nn.Module:
    import lightning.pytorch as lightning

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=1, callbacks=list(callbacks), enable_model_summary=False, **quiet
    )
    trainer.fit(module, DataLoader(batches(), batch_size=None))
    return module.net


@pytest.mark.filterwarnings(*LIGHTNING_WARNS)
@pytest.mark.parametrize("where", ["configure_optimizers", "on_train_start"])
def test_lightning(where: str) -> None:
    assert_same_at_every_sparsity(lightning_fit(lightning_module(where)), plain_loop(attach=True))


@pytest.mark.filterwarnings(*LIGHTNING_WARNS)
def test_nested_as_a_lightning_callback() -> None:
    import lightning.pytorch as lightning

    class Nested(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, module: Any, batch: Batch, index: int) -> None:
            self.batch = batch

        def on_after_backward(self, trainer: Any, module: Any) -> None:
            with pof.pruned(module, NESTED_AT):
                module.training_step(self.batch, 0).backward()

    assert_same_at_every_sparsity(lightning_fit(lightning_module(), Nested()), plain_loop(nested_step))


@pytest.mark.filterwarnings(*LIGHTNING_WARNS)
@pytest.mark.parametrize("attach", [False, True], ids=["alone", "attached"])
def test_nested_in_lightnings_manual_optimisation(attach: bool) -> None:
    automatic = lightning_module("configure_optimizers" if attach else "")

    class Manual(type(automatic)):  # type: ignore[misc]
        automatic_optimization = False

        def training_step(self, batch: Batch, index: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, index))
            with pof.pruned(self, NESTED_AT):
                self.manual_backward(super().training_step(batch, index))
            optimizer.step()

    assert_same_at_every_sparsity(lightning_fit(Manual()), plain_loop(nested_step, attach=attach))


# accelerate


@pytest.fixture
def _own_accelerate() -> Iterator[None]:
    """accelerate's settings are one a process (transformers' Trainer makes them too): leave none to other tests."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.fixture
def accelerator(_own_accelerate: None) -> Any:
    from accelerate import Accelerator

    return Accelerator(cpu=True, gradient_accumulation_steps=2)


def halves() -> list[Batch]:
    return [half for x, y in batches() for half in zip(x.chunk(2), y.chunk(2), strict=True)]


@pytest.mark.parametrize("nested", [False, True], ids=["clean", "nested"])
def test_accelerate_with_gradient_accumulation(accelerator: Any, nested: bool) -> None:
    model = small_model()
    model, optimizer, loader = accelerator.prepare(model, sgd(model), DataLoader(halves(), batch_size=None))
    attached = pof.attach(model, optimizer, **ATTACH)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(x), y))
            if nested:
                with pof.pruned(model, NESTED_AT):
                    accelerator.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert attached.step == STEPS
    reference = plain_loop(nested_step if nested else clean_step, attach=True)
    assert_same_at_every_sparsity(accelerator.unwrap_model(model), reference)


# An average of the weights


def test_an_ema_model_is_pruned_restored_and_saved(tmp_path: Path) -> None:
    model = small_model().float()
    optimizer = sgd(model)
    pof.attach(model, optimizer, **ATTACH)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for x, y in batches():
        clean_step(model, optimizer, (x.float(), y))
        ema.update_parameters(model)
    dense = copy.deepcopy(ema.module.state_dict())
    elastic = pof.Elastic(ema.module, magnitudes="unit")
    pof.save(ema.module, tmp_path / "ema.pof", magnitudes="unit")
    for sparsity in (0.0, 0.5, 0.8):
        elastic.prune(sparsity)
        fresh = small_model().float()
        pof.load(tmp_path / "ema.pof", into=fresh, sparsity=sparsity)
        assert_bit_equal(fresh.state_dict(), ema.module.state_dict())
    elastic.restore()
    assert_bit_equal(ema.module.state_dict(), dense)
    assert accuracy_at(ema.module.double(), 0.5, magnitudes="unit") > 0.98


# Hugging Face's Trainer


VOCABULARY, WORDS, LABELS = 30, 8, 3


def sentences(count: int, seed: int) -> list[dict[str, Tensor]]:
    """A sentence's label is which third of the vocabulary most of its words are from."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(LABELS, (count, 1), generator=generator)
    third = VOCABULARY // LABELS
    own = labels * third + torch.randint(third, (count, WORDS), generator=generator)
    noise = torch.randint(VOCABULARY, (count, WORDS), generator=generator)
    words = torch.where(torch.rand(count, WORDS, generator=generator) < 0.3, noise, own)
    return [{"input_ids": i, "labels": y} for i, y in zip(words, labels[:, 0], strict=True)]


def small_bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    # Rows keep the norms that they begin with; those of the default range, 0.02, suit wide layers only.
    more = {"max_position_embeddings": WORDS, "num_labels": LABELS, "initializer_range": 0.2}
    return BertForSequenceClassification(BertConfig(vocab_size=VOCABULARY, **sizes, **more))


def hugging_face(folder: Path, how: str = "", second_pass_at: float | None = None) -> tuple[Any, list[Any]]:
    """A BERT that transformers' Trainer trained, and what was attached on the way."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    model, found = small_bert(), []
    optimizer = AdamW(model.parameters(), lr=1e-2)

    class Attach(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any, optimizer: Any, **_: Any) -> None:
            found.append(pof.attach(model, optimizer, **BERT_ATTACH))

    class NestedTrainer(Trainer):
        def training_step(self, model: Any, *inputs: Any, **more: Any) -> Tensor:
            loss = super().training_step(model, *inputs, **more)
            with pof.pruned(model, second_pass_at):
                super().training_step(model, *inputs, **more)
            return loss

    if how == "optimizers":
        found.append(pof.attach(model, optimizer, **BERT_ATTACH))
    trainer = (Trainer if second_pass_at is None else NestedTrainer)(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            dataloader_pin_memory=False,
        ),
        train_dataset=sentences(BATCH * STEPS, seed=1),
        optimizers=(optimizer, None),
        callbacks=[Attach()] if how == "on_train_begin" else [],
    )
    trainer.train()
    return model, found


def bert_loss_at(model: Any, sparsity: float) -> float:
    data = torch.utils.data.default_collate(sentences(500, seed=2))
    with torch.no_grad(), pof.Elastic(model.eval()).at(sparsity):
        return model(**data).loss.item()


@pytest.mark.usefixtures("_own_accelerate")
@pytest.mark.parametrize("how", ["optimizers", "on_train_begin"])
def test_hugging_faces_trainer(tmp_path: Path, how: str) -> None:
    (model, (attached,)), (without, _) = hugging_face(tmp_path, how), hugging_face(tmp_path)
    assert attached.step == STEPS
    assert bert_loss_at(model, 0.0) < 0.4, "it learns"
    assert mean_cosine(model) > mean_cosine(without) + 0.05
    for name, norms in row_norms(small_bert()).items():
        torch.testing.assert_close(row_norms(model)[name], norms, rtol=1e-5, atol=1e-6)
    elastic = pof.Elastic(model, magnitudes="unit")
    elastic.prune(0.7)
    assert elastic.sparsity == pytest.approx(0.7, abs=1e-3)


@pytest.mark.usefixtures("_own_accelerate")
def test_nested_in_hugging_faces_trainer(tmp_path: Path) -> None:
    nested, clean = (hugging_face(tmp_path, second_pass_at=sparsity)[0] for sparsity in (NESTED_AT, 0.0))
    assert bert_loss_at(nested, NESTED_AT) < 0.7 * bert_loss_at(clean, NESTED_AT)
