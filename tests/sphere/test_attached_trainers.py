"""`pof.attach` in Lightning, Accelerate, wrapped optimisers and two processes: the loss form in each of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from attached_training import (
    SETTINGS,
    STEPS,
    Batch,
    assert_same,
    batches,
    halves,
    loss_form,
    plain_steps,
    sgd,
    with_attach,
)
from torch import Tensor, nn
from torch.optim import Optimizer

import pof
from tests.small_models import assert_bit_equal, tanh_convnet

QUIET = [
    "ignore:.*does not have many workers",
    "ignore:.*num_workers",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",
    "ignore:.*training_step. returned .None",
    "ignore:.*LeafSpec",
]


def lightning_run(data: list[Batch], how: str = "configure_optimizers", **options: Any) -> tuple[nn.Module, Any]:
    import lightning.pytorch as lightning

    net = tanh_convnet()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Batch, index: int) -> Tensor | None:
            x, y = batch
            return F.cross_entropy(self.net(x), y) if x.isfinite().all() else None

        def configure_optimizers(self) -> Optimizer:
            optimizer = sgd(self.net.parameters())
            if how == "configure_optimizers":
                self.attached = pof.attach(self.net, optimizer, **SETTINGS)
            return optimizer

        def on_train_start(self) -> None:
            if how == "on_train_start":  # `self.optimizers()` is Lightning's wrapper.
                self.attached = pof.attach(self.net, self.optimizers(), **SETTINGS)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))
    return net, module.attached


@pytest.mark.filterwarnings(*QUIET)
@pytest.mark.parametrize("how", ["configure_optimizers", "on_train_start"])
def test_lightning(how: str) -> None:
    model, attached = lightning_run(batches(), how)
    assert attached.step == STEPS
    assert_same(model, loss_form())


@pytest.mark.filterwarnings(*QUIET)
def test_lightning_accumulates_gradients() -> None:
    model, attached = lightning_run(halves(batches()), accumulate_grad_batches=2)
    assert attached.step == STEPS
    assert_same(model, loss_form())


@pytest.mark.filterwarnings(*QUIET)
def test_lightning_skips_a_batch() -> None:
    (x, y), data = batches(1)[0], batches()
    model, _ = lightning_run([*data, (x * float("nan"), y)])
    assert_same(model, loss_form())


@pytest.fixture
def accelerator() -> Iterator[Any]:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState

    yield Accelerator(cpu=True, gradient_accumulation_steps=2)
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.mark.parametrize("when", ["before prepare", "after prepare"])
def test_accelerate_accumulates_gradients(accelerator: Any, when: str) -> None:
    model = tanh_convnet()
    optimizer = sgd(model.parameters())
    if when == "before prepare":
        attached = pof.attach(model, optimizer, **SETTINGS)
    loader = torch.utils.data.DataLoader(halves(batches()), batch_size=None)
    prepared, wrapped, loader = accelerator.prepare(model, optimizer, loader)
    assert wrapped is not optimizer
    if when == "after prepare":
        attached = pof.attach(prepared, wrapped, **SETTINGS)
    for x, y in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(F.cross_entropy(prepared(x), y))
            wrapped.step()
            wrapped.zero_grad()
    assert attached.step == STEPS
    assert_same(accelerator.unwrap_model(prepared), loss_form())


class Wrapper:
    """As other libraries wrap an optimiser: not a torch optimiser itself, the real one in `.optimizer`."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()


@pytest.mark.parametrize("depth", [1, 2])
def test_the_hooks_go_to_the_innermost_optimizer(depth: int) -> None:
    model = tanh_convnet()
    wrapped: Any = sgd(model.parameters())
    for _ in range(depth):
        wrapped = Wrapper(wrapped)
    pof.attach(model, wrapped, **SETTINGS)
    plain_steps(model, wrapped, batches())
    assert_bit_equal(model, with_attach())


def run_rank(rank: int, folder: Path) -> None:
    """One of two processes: trains on its half of every batch, and saves its weights."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(tanh_convnet())
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, halves(batches())[rank::2])
    torch.save(model.module.state_dict(), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_train_the_model_that_one_would(tmp_path: Path) -> None:
    mp.spawn(run_rank, args=(tmp_path,), nprocs=2)
    ranks = [tanh_convnet(), tanh_convnet()]
    for rank, model in enumerate(ranks):
        model.load_state_dict(torch.load(tmp_path / f"{rank}.pt", weights_only=True))
    assert_bit_equal(ranks[0], ranks[1])
    assert_same(ranks[0], with_attach())
