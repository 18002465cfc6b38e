"""`pof.attach` is the loss form, `loss + penalty(step)` and `sphere.project()`, in every kind of training loop.

Everything runs in float64, so that the two forms agree to many digits and a mask never differs by rounding.
"""

import copy
import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop
from torch.optim.swa_utils import AveragedModel

import pof
from pof.errors import PofError

STEPS = 6
SETTINGS: dict[str, Any] = {"tr": (0.8, 0.4), "steps": STEPS, "weight": 0.5}
Batch = tuple[Tensor, Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]


def small_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(4, 6, 3, groups=2),
        nn.Tanh(),
        nn.ConvTranspose2d(6, 4, 2, groups=2),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, 3),
    ).double()


def batches(count: int = STEPS) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(8, 2, 4, 4, generator=generator, dtype=torch.float64),
            torch.randint(3, (8,), generator=generator),
        )
        for _ in range(count)
    ]


def sgd(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return SGD(parameters, lr=0.2, momentum=0.9, weight_decay=0.01)


OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": sgd,
    "sgd foreach nesterov": lambda p: SGD(p, lr=0.2, momentum=0.9, nesterov=True, foreach=True),
    "sgd fused": lambda p: SGD(p, lr=0.2, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: Adam(p, lr=0.02, weight_decay=0.01),
    "adam foreach": lambda p: Adam(p, lr=0.02, foreach=True),
    "adam fused": lambda p: Adam(p, lr=0.02, fused=True),
    "adamw": lambda p: AdamW(p, lr=0.02, weight_decay=0.1),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, centered=True),
}


def plain_steps(model: nn.Module, optimizer: Optimizer, data: Iterable[Batch]) -> None:
    for x, y in data:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def with_attach(make: MakeOptimizer = sgd, data: Iterable[Batch] | None = None, **settings: Any) -> nn.Sequential:
    """A model trained by a plain loop under `pof.attach`."""
    model = small_model()
    optimizer = make(model.parameters())
    pof.attach(model, optimizer, **{**SETTINGS, **settings})
    plain_steps(model, optimizer, batches() if data is None else data)
    return model


def loss_form(make: MakeOptimizer = sgd, data: Iterable[Batch] | None = None, sphere: bool = True) -> nn.Sequential:
    """A model trained by the loop that `pof.attach` stands for."""
    model = small_model()
    optimizer, penalty, norms = make(model.parameters()), pof.Penalty(model, **SETTINGS), pof.Sphere(model)
    for step, (x, y) in enumerate(batches() if data is None else data):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + penalty(step)).backward()
        optimizer.step()
        if sphere:
            norms.project()
    return model


def assert_same(left: nn.Module, right: nn.Module) -> None:
    wanted = right.state_dict()
    assert left.state_dict().keys() == wanted.keys()
    for name, value in left.state_dict().items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-8, atol=1e-9, msg=lambda m, name=name: f"{name}: {m}")


def assert_bit_equal(left: nn.Module, right: nn.Module) -> None:
    wanted = right.state_dict()
    unequal = [name for name, value in left.state_dict().items() if not torch.equal(value, wanted[name])]
    assert unequal == []


# The loss form


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_attach_is_the_loss_form(name: str) -> None:
    make = OPTIMIZERS[name]
    model = with_attach(make)
    assert_same(model, loss_form(make))
    plain = small_model()
    plain_steps(plain, make(plain.parameters()), batches())
    assert not torch.allclose(model[2].weight, plain[2].weight, atol=1e-3), "without the penalty it is another model"


def test_without_the_sphere_too() -> None:
    model = with_attach(sphere=False)
    assert_same(model, loss_form(sphere=False))
    assert not torch.allclose(model[2].weight, with_attach()[2].weight, atol=1e-3)


def test_one_tr_needs_no_steps() -> None:
    constant = with_attach(tr=0.6, steps=None)
    assert_bit_equal(constant, with_attach(tr=(0.6, 0.6), steps=3))
    assert not torch.equal(constant[2].weight, with_attach(tr=0.7, steps=None)[2].weight)


def test_a_weight_that_the_loss_does_not_reach_still_gets_the_penalty() -> None:
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "idle": nn.Linear(4, 4)})
    optimizer = SGD(model.parameters(), lr=0.1)
    pof.attach(model, optimizer, **SETTINGS)
    before = model["idle"].weight.detach().clone()
    model["used"](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert not torch.equal(model["idle"].weight, before)


def test_half_precision_follows_the_loss_form_to_its_own_precision() -> None:
    models = [small_model().bfloat16() for _ in range(2)]
    optimizers = [SGD(model.parameters(), lr=0.05) for model in models]
    penalty, sphere = pof.Penalty(models[1], **SETTINGS), pof.Sphere(models[1])
    pof.attach(models[0], optimizers[0], **SETTINGS)
    for step, (x, y) in enumerate(batches(3)):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x.bfloat16()).float(), y)
            (loss + penalty(step) if model is models[1] else loss).backward()
            optimizer.step()
        sphere.project()
    assert models[0][2].weight.dtype is torch.bfloat16
    for left, right in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(left, right, rtol=0.02, atol=4e-3)


def channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)


def transposed_in_memory(model: nn.Module) -> None:
    for layer in (model[2], model[4], model[6]):
        layer.weight = nn.Parameter(layer.weight.data.transpose(0, 1).contiguous().transpose(0, 1))


def with_gaps(model: nn.Module) -> None:
    for layer in (model[2], model[4], model[6]):
        layer.weight = nn.Parameter(layer.weight.data.repeat_interleave(2, dim=1)[:, ::2])


@pytest.mark.parametrize("lay_out", [channels_last, transposed_in_memory, with_gaps])
def test_the_layout_in_memory_makes_no_difference(lay_out: Callable[[nn.Module], None]) -> None:
    model = small_model()
    lay_out(model)
    strides = [p.stride() for p in model.parameters()]
    assert strides != [p.stride() for p in small_model().parameters()]
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches())
    assert [p.stride() for p in model.parameters()] == strides
    assert_same(model, loss_form())


def test_what_to_log_is_that_of_the_last_step() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(2))
    penalty = pof.Penalty(model, **SETTINGS)
    expected = penalty(2).item()
    plain_steps(model, optimizer, batches(1))
    assert attached.step == 3
    assert float(attached.value) == pytest.approx(expected, rel=1e-6)
    assert attached.penalty.mean_cosine == pytest.approx(penalty.mean_cosine, rel=1e-6)
    assert attached.penalty.layers().keys() == {"2.weight", "4.weight", "6.weight"}


# Closures


def train_by_closure(model: nn.Module, optimizer: Any, how: str, data: Iterable[Batch]) -> list[Any]:
    """Each step is given a closure that clears the gradients and computes them again, as Lightning does."""
    returned = []
    for x, y in data:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        returned.append(optimizer.step(closure) if how == "position" else optimizer.step(closure=closure))
    return returned


@pytest.mark.parametrize("how", ["position", "keyword"])
@pytest.mark.parametrize("name", ["sgd", "adam fused"])
def test_a_closure_is_wrapped(name: str, how: str) -> None:
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    train_by_closure(model, optimizer, how, batches())
    assert attached.step == STEPS
    assert_same(model, loss_form(OPTIMIZERS[name]))


def test_a_closures_loss_includes_the_penalty() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    (x, y), penalty = batches(1)[0], pof.Penalty(model, **SETTINGS)
    expected = (F.cross_entropy(model(x), y) + penalty(0)).item()
    (loss,) = train_by_closure(model, optimizer, "position", [(x, y)])
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_a_closure_may_return_a_plain_number() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    for x, y in batches():

        def closure(x: Tensor = x, y: Tensor = y) -> float:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss.item()

        optimizer.step(closure)
    assert_same(model, loss_form())


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_calls_its_closure_many_times(search: str | None) -> None:
    def make(parameters: Iterable[nn.Parameter]) -> Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, line_search_fn=search)

    model, other = small_model(), small_model()
    optimizer, plain = make(model.parameters()), make(other.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    train_by_closure(model, optimizer, "position", batches(3))
    penalty, sphere = pof.Penalty(other, **SETTINGS), pof.Sphere(other)
    for step, (x, y) in enumerate(batches(3)):

        def closure(step: int = step, x: Tensor = x, y: Tensor = y) -> Tensor:
            plain.zero_grad()
            loss = F.cross_entropy(other(x), y) + penalty(step)
            loss.backward()
            return loss

        plain.step(closure)
        sphere.project()
    assert attached.step == 3, "a step is a step, however often it looks at the loss"
    assert_same(model, other)


def test_a_closure_without_gradients_leaves_the_model_alone() -> None:
    """Lightning's closure for a batch that `training_step` skipped: gradients cleared, None returned."""
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.2)
    pof.attach(model, optimizer, **SETTINGS)
    before = copy.deepcopy(model)
    assert optimizer.step(lambda: optimizer.zero_grad()) is None
    assert_bit_equal(model, before)


def test_a_closure_that_forgets_to_return_its_loss_still_gets_the_penalty() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    for x, y in batches():

        def closure(x: Tensor = x, y: Tensor = y) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()

        optimizer.step(closure)
    assert_same(model, loss_form())


# Gradient accumulation


def halves(data: Iterable[Batch]) -> list[Batch]:
    return [(x[part], y[part]) for x, y in data for part in (slice(0, 4), slice(4, 8))]


def test_accumulated_gradients_get_the_penalty_once_a_step() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    for i, (x, y) in enumerate(halves(batches())):
        (F.cross_entropy(model(x), y) / 2).backward()
        if i % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert attached.step == STEPS
    assert_same(model, loss_form())


# GradScaler


def scaled_steps(model: nn.Module, optimizer: Optimizer, data: Iterable[Batch], unscale: bool = False) -> list[bool]:
    """Train under a GradScaler; a batch with an inf overflows. Returns which steps left the weights as they were."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    still = []
    for x, y in data:
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        still.append(all(torch.equal(value, before[name]) for name, value in model.state_dict().items()))
    return still


AMP = ["sgd", "sgd fused", "adam", "adam fused"]


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("name", AMP)
def test_the_penalty_is_not_scaled_down_by_a_grad_scaler(name: str, unscale: bool) -> None:
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    scaled_steps(model, optimizer, batches(), unscale)
    assert_same(model, loss_form(OPTIMIZERS[name]))


@pytest.mark.parametrize("name", AMP)
def test_a_step_that_overflows_is_skipped_and_not_counted(name: str) -> None:
    good = batches()
    overflow = (torch.full_like(good[0][0], float("inf")), good[0][1])
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    still = scaled_steps(model, optimizer, [*good[:2], overflow, *good[2:]])
    assert attached.step == STEPS
    assert_same(model, loss_form(OPTIMIZERS[name]))
    assert still == [False, False, True, False, False, False, False], "a skipped step changes not a bit"


# Other people's trainers

QUIET = [
    "ignore:.*does not have many workers",
    "ignore:.*num_workers",
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated",
    "ignore:.*training_step. returned .None",
    "ignore:.*LeafSpec",
]


def lightning_run(data: list[Batch], how: str = "configure_optimizers", **options: Any) -> tuple[nn.Module, Any]:
    import lightning.pytorch as lightning

    net = small_model()

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
    model = small_model()
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
    model = small_model()
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
    model = nn.parallel.DistributedDataParallel(small_model())
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, halves(batches())[rank::2])
    torch.save(model.module.state_dict(), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_train_the_model_that_one_would(tmp_path: Path) -> None:
    mp.spawn(run_rank, args=(tmp_path,), nprocs=2)
    ranks = [small_model(), small_model()]
    for rank, model in enumerate(ranks):
        model.load_state_dict(torch.load(tmp_path / f"{rank}.pt", weights_only=True))
    assert_bit_equal(ranks[0], ranks[1])
    assert_same(ranks[0], with_attach())


# What is trained, and what is left alone


def test_frozen_weights_are_left_alone() -> None:
    model = small_model()
    model[4].weight.requires_grad_(False)
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(2))
    assert model[4].weight.grad is None
    assert torch.equal(model[4].weight, small_model()[4].weight)
    assert attached.penalty.layers().keys() == {"2.weight", "6.weight"}


def test_weights_that_the_optimizer_does_not_hold_get_no_gradient_from_the_penalty() -> None:
    model, plain = small_model(), small_model()
    optimizers = [sgd([*m[2].parameters(), *m[6].parameters()]) for m in (model, plain)]
    pof.attach(model, optimizers[0], **SETTINGS)
    plain_steps(model, optimizers[0], batches(1))
    plain_steps(plain, optimizers[1], batches(1))
    assert torch.equal(model[4].weight.grad, plain[4].weight.grad)
    assert torch.equal(model[4].weight, plain[4].weight)
    assert not torch.equal(model[2].weight.grad, plain[2].weight.grad)


def test_globs_choose_what_is_trained_with_the_method() -> None:
    model, plain = small_model(), small_model()
    attached = pof.attach(model, optimizer := sgd(model.parameters()), exclude="6", **SETTINGS)
    plain_steps(model, optimizer, batches(1))
    plain_steps(plain, sgd(plain.parameters()), batches(1))
    assert torch.equal(model[6].weight, plain[6].weight)
    assert attached.sphere is not None
    assert attached.sphere.state_dict().keys() == {"2.weight", "4.weight"}


@pytest.mark.parametrize("freeze", [True, False], ids=["frozen", "unfrozen"])
def test_freezing_and_unfreezing_while_attached_is_the_loss_form(freeze: bool) -> None:
    """Gradual unfreezing: the optimiser holds all weights, some of them take part for a part of the training."""
    model, other = small_model(), small_model()
    optimizers = [sgd(m.parameters()) for m in (model, other)]
    for m in (model, other):
        m[4].weight.requires_grad_(freeze)
    pof.attach(model, optimizers[0], **SETTINGS)
    penalty, sphere = pof.Penalty(other, **SETTINGS), pof.Sphere(other)
    for step, batch in enumerate(batches(4)):
        if step == 2:
            for m in (model, other):
                m[4].weight.requires_grad_(not freeze)
        plain_steps(model, optimizers[0], [batch])
        optimizers[1].zero_grad()
        (F.cross_entropy(other(batch[0]), batch[1]) + penalty(step)).backward()
        optimizers[1].step()
        sphere.project()
    assert_same(model, other)


def test_weights_that_are_given_to_the_optimizer_later_join() -> None:
    """Lightning's `BaseFinetuning` unfreezes layers by adding a group to the optimiser."""
    model, other = small_model(), small_model()
    optimizers = [sgd([*m[2].parameters(), *m[6].parameters()]) for m in (model, other)]
    pof.attach(model, optimizers[0], **SETTINGS)
    for m, optimizer in zip((model, other), optimizers, strict=True):
        optimizer.add_param_group({"params": list(m[4].parameters())})
    pof.attach(other, optimizers[1], **SETTINGS)
    plain_steps(model, optimizers[0], batches(2))
    plain_steps(other, optimizers[1], batches(2))
    assert_bit_equal(model, other)


def test_a_step_with_everything_frozen_changes_nothing() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    model[:6].requires_grad_(False)
    model[6].weight.requires_grad_(False)
    plain_steps(model, optimizer, batches(1))
    unequal = [n for n, p in small_model().named_parameters() if not torch.equal(p, model.get_parameter(n))]
    assert unequal == ["6.bias"]


def test_two_optimizers_share_a_model() -> None:
    model = small_model()
    optimizers = [sgd(model[:4].parameters()), sgd(model[4:].parameters())]
    for optimizer in optimizers:
        pof.attach(model, optimizer, **SETTINGS)
    for x, y in batches():
        model.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert_same(model, with_attach())


# Ending, saving, resuming


def test_remove_ends_it() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(2))
    plain = copy.deepcopy(model)
    other = sgd(plain.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    attached.remove()
    plain_steps(model, optimizer, batches(3))
    plain_steps(plain, other, batches(3))
    assert_bit_equal(model, plain)
    assert attached.step == 2


@pytest.mark.parametrize("refresh", [1, 4])
def test_a_resumed_training_is_bit_equal(refresh: int) -> None:
    """Saved after 3 of 6 steps, in the middle of what masks found at step 0 are used for."""
    settings = {**SETTINGS, "refresh": refresh}
    data, model = batches(), small_model()
    optimizer = sgd(model.parameters())
    attached = pof.attach(model, optimizer, **settings)
    plain_steps(model, optimizer, data[:3])
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), attached.state_dict()], file)
    plain_steps(model, optimizer, data[3:])

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = small_model()
    resumed_optimizer = sgd(resumed.parameters())
    again = pof.attach(resumed, resumed_optimizer, **settings)
    for part, state in zip((resumed, resumed_optimizer, again), saved, strict=True):
        part.load_state_dict(state)
    plain_steps(resumed, resumed_optimizer, data[3:])
    assert again.step == STEPS
    assert_bit_equal(resumed, model)


def test_a_resume_without_its_state_would_be_another_training() -> None:
    """The test above means something only if the state matters."""
    data, model = batches(), small_model()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, data[:3])
    forgetful = copy.deepcopy(model)
    other = sgd(forgetful.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    plain_steps(model, optimizer, data[3:])
    pof.attach(forgetful, other, **SETTINGS)
    plain_steps(forgetful, other, data[3:])
    assert not torch.allclose(forgetful[2].weight, model[2].weight, atol=1e-4)


@pytest.mark.parametrize("sphere", [True, False])
def test_the_state_of_a_training_with_other_settings_is_refused(sphere: bool) -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    first = pof.attach(model, optimizer, sphere=not sphere, **SETTINGS)
    saved = first.state_dict()
    first.remove()
    attached = pof.attach(model, optimizer, sphere=sphere, **SETTINGS)
    with pytest.raises(PofError, match="sphere"):
        attached.load_state_dict(saved)


def test_masks_of_another_plan_are_refused() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    wide = pof.attach(model, optimizer, sphere=False, refresh=2, **SETTINGS)
    plain_steps(model, optimizer, batches(1))
    wide.remove()
    narrow = pof.attach(model, optimizer, sphere=False, refresh=2, include="6", **SETTINGS)
    with pytest.raises(PofError, match="another plan"):
        narrow.load_state_dict(wide.state_dict())


# The model stays the plain module that it was


def test_the_model_is_the_same_module_with_the_same_keys() -> None:
    model = small_model()
    before = (list(model.state_dict()), [type(m) for m in model.modules()], [id(p) for p in model.parameters()])
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    assert_bit_equal(model, small_model())
    plain_steps(model, optimizer, batches(1))
    assert (list(model.state_dict()), [type(m) for m in model.modules()], [id(p) for p in model.parameters()]) == before


def test_deepcopy_and_pickle_work_and_the_copies_are_free() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    plain_steps(model, optimizer, batches(1))
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    at_one = copy.deepcopy(model.state_dict())
    plain_steps(model, optimizer, batches(2))
    for duplicate in copies:
        assert all(torch.equal(value, at_one[name]) for name, value in duplicate.state_dict().items())
        plain_steps(duplicate, sgd(duplicate.parameters()), batches(1))
    assert_bit_equal(copies[0], copies[1])


def test_an_average_of_the_weights_follows_the_training() -> None:
    model = small_model()
    optimizer = sgd(model.parameters())
    pof.attach(model, optimizer, **SETTINGS)
    average = AveragedModel(model)
    seen = []
    for batch in batches(3):
        plain_steps(model, optimizer, [batch])
        average.update_parameters(model)
        seen.append(model[2].weight.detach().clone())
    torch.testing.assert_close(average.module[2].weight, torch.stack(seen).mean(0))


def test_a_compiled_model_trains_the_same() -> None:
    model = small_model()
    compiled = torch.compile(model, backend="eager")
    optimizer = sgd(compiled.parameters())
    pof.attach(compiled, optimizer, **SETTINGS)
    plain_steps(compiled, optimizer, batches())
    assert_same(model, with_attach())


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tr": 70}, r"tr=70 must be in \[0, 1\): pass 0.7"),
        ({"tr": (0.9, 1.0)}, r"tr=1\.0 must be in \[0, 1\)"),
        ({"tr": -0.1}, r"tr=-0\.1 must be in"),
        ({"tr": float("nan")}, "tr=nan must be in"),
        ({"tr": "0.9"}, "tr='0.9' must be a number"),
        ({"tr": (0.9, 0.8, 0.7)}, "must be one number or a pair"),
        ({"tr": 0.0}, r"must be in \(0, 1\)"),
        ({"steps": None}, "steps=None must be the number of optimiser steps"),
        ({"steps": 0}, "steps=0 must be .* 1 or more"),
        ({"steps": 10.5}, r"steps=10\.5 must be"),
        ({"weight": -1}, "weight=-1 must be .*0 or more"),
        ({"weight": float("nan")}, "weight=nan must be .*0 or more"),
        ({"weight": float("inf")}, "weight=inf must be"),
        ({"weight": "0.1"}, "weight='0.1' must be"),
        ({"refresh": 0}, "refresh=0 must be .* 1 or more"),
        ({"include": "nope"}, "include='nope' matches no weight"),
        ({"exclude": "nope"}, "exclude='nope' matches no weight"),
    ],
    ids=str,
)
def test_a_bad_argument_is_an_error_that_names_it_and_attaches_nothing(arguments: dict[str, Any], message: str) -> None:
    model, plain = small_model(), small_model()
    optimizer = sgd(model.parameters())
    with pytest.raises(PofError, match=message):
        pof.attach(model, optimizer, **{**SETTINGS, **arguments})
    plain_steps(model, optimizer, batches(1))
    plain_steps(plain, sgd(plain.parameters()), batches(1))
    assert_bit_equal(model, plain)


def test_weights_that_are_not_finite_attach_nothing() -> None:
    model = small_model()
    with torch.no_grad():
        model[2].weight[0] = float("nan")
    optimizer = sgd(model.parameters())
    with pytest.raises(PofError, match=r"weight '2\.weight' holds NaN or inf"):
        pof.attach(model, optimizer, **SETTINGS)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_the_optimizer_of_another_model_is_an_error() -> None:
    with pytest.raises(PofError, match="trains no weight of the plan"):
        pof.attach(small_model(), sgd(small_model().parameters()), **SETTINGS)


@pytest.mark.parametrize("optimizer", [None, "sgd", torch.optim.SGD])
def test_what_is_no_optimizer_is_an_error(optimizer: Any) -> None:
    with pytest.raises(PofError, match=r"pass a torch\.optim\.Optimizer"):
        pof.attach(small_model(), optimizer, **SETTINGS)
