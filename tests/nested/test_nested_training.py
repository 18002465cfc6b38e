"""`pof.Nested` in loops that nobody here wrote: by hand, half precision, accumulation, accelerate, resumed."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nested_models import HALF, batches, gradients, network
from torch import Tensor, nn
from torch.optim import SGD

import pof
from pof.elastic.distillation import divergence
from pof.errors import PofError
from pof.methods import METHODS, Span


def pruned_by_hand(model: nn.Module, sparsity: float) -> tuple[nn.Module, dict[str, Tensor]]:
    """A copy with the smallest weights of each planned layer zero, and the masks."""
    other, masks = copy.deepcopy(model), {}
    for name in ("2.weight", "5.weight"):
        weight = other.get_parameter(name)
        order = weight.detach().abs().reshape(-1).argsort(stable=True)
        kept = torch.ones(weight.numel(), dtype=torch.bool)
        kept[order[: round(sparsity * weight.numel())]] = False
        masks[name] = kept.view(weight.shape)
        with torch.no_grad():
            weight.mul_(masks[name])
    return other, masks


@pytest.mark.parametrize("distill", [0.0, 0.25])
def test_gradients_are_those_of_two_plain_passes(distill: float) -> None:
    model, ((x, y),) = network(), batches(1)
    nested = pof.Nested(model, **HALF, distill=distill, temperature=3.0 if distill else 1.0, weight=0.5)

    def loss() -> tuple[Tensor, Tensor]:
        logits = model(x)
        return F.cross_entropy(logits, y), logits

    found = nested.backward(loss)
    clean, (pruned, masks) = copy.deepcopy(model), pruned_by_hand(model, 0.5)
    clean.zero_grad()
    logits = clean(x)
    first = F.cross_entropy(logits, y)
    first.backward()
    outputs = pruned(x)
    second = F.cross_entropy(outputs, y)
    if distill:
        divergence = F.kl_div(
            F.log_softmax(outputs / 3, 1), F.log_softmax(logits.detach() / 3, 1), reduction="batchmean", log_target=True
        )
        second = (1 - distill) * second + distill * 9 * divergence
    second.backward()
    torch.testing.assert_close(found, first.detach())
    assert nested.pruned_loss is not None
    torch.testing.assert_close(nested.pruned_loss, second.detach())
    for name, parameter in model.named_parameters():
        wanted = 0.5 * pruned.get_parameter(name).grad * masks.get(name, 1.0) + clean.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, wanted)


def test_without_logits_nothing_is_distilled() -> None:
    model, ((x, y),) = network(), batches(1)
    other = copy.deepcopy(model)
    pof.Nested(model, **HALF, distill=0.9).backward(lambda: F.cross_entropy(model(x), y))
    pof.Nested(other, **HALF, distill=0.0).backward(lambda: F.cross_entropy(other(x), y))
    for mine, theirs in zip(gradients(model), gradients(other), strict=True):
        assert torch.equal(mine, theirs)


def trained(step: Callable[[pof.Nested, Tensor, Tensor], object], model: nn.Module, **settings: Any) -> nn.Module:
    torch.manual_seed(1)
    nested, optimizer = pof.Nested(model, **settings), SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches(5):
        optimizer.zero_grad()
        step(nested, x, y)
        optimizer.step()
    return model


def test_it_is_what_the_trainers_method_does() -> None:
    mine, theirs = network(), network()
    theirs.load_state_dict(mine.state_dict())
    trained(lambda nested, x, y: nested.backward(lambda: F.cross_entropy(mine(x), y)), mine, low=0.3, high=0.9, seed=7)
    torch.manual_seed(1)
    optimizer = SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    settings = METHODS["nested"].Settings(low=0.3, high=0.9, distill=0.0)
    method = METHODS["nested"](theirs, optimizer, settings, Span(5, 5, 7))
    for step, (x, y) in enumerate(batches(5)):
        optimizer.zero_grad()

        def run_pass(*_: Any, x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = F.cross_entropy(theirs(x), y)
            loss.backward()
            return loss.detach()

        method.gradients(step, run_pass)
        optimizer.step()
    for name, value in mine.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name


@pytest.mark.parametrize("teacher", [False, True])
def test_gradients_accumulate_over_parts_of_a_batch(teacher: bool) -> None:
    model, ((x, y),) = network(), batches(1, 16)
    whole, parts = copy.deepcopy(model), copy.deepcopy(model)

    def loss(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = net(images)
        return F.cross_entropy(logits, labels), logits

    settings: dict[str, Any] = {"low": 0.3, "high": 0.9, "distill": 0.5, "teacher": teacher, "seed": 5}
    pof.Nested(whole, **settings).backward(lambda: loss(whole, x, y))
    nested = pof.Nested(parts, **settings)
    for images, labels in zip(x.chunk(4), y.chunk(4), strict=True):
        nested.backward(lambda images=images, labels=labels: loss(parts, images, labels), parts=4)
    assert nested.step == 1
    for one, other in zip(gradients(whole), gradients(parts), strict=True):
        torch.testing.assert_close(one, other)


def test_autocast_with_a_grad_scaler() -> None:
    model, ((x, y),) = network(), batches(1)
    plain, scaled = copy.deepcopy(model), copy.deepcopy(model)

    def loss(net: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(net(x).float(), y)

    settings = {**HALF, "rho": 0.1}
    pof.Nested(plain, **settings).backward(lambda: loss(plain))
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=256.0), SGD(scaled.parameters(), lr=0.1)
    pof.Nested(scaled, **settings).backward(
        lambda: loss(scaled), lambda value: scaler.scale(value).backward(), loss_scale=scaler.get_scale()
    )
    scaler.unscale_(optimizer)
    for one, other in zip(gradients(plain), gradients(scaled), strict=True):
        torch.testing.assert_close(one, other, rtol=0.02, atol=1e-3)
    scaler.step(optimizer)
    scaler.update()
    assert not torch.equal(scaled[5].weight, model[5].weight)


def test_a_step_that_overflows_is_left_out_by_the_scaler() -> None:
    model, ((x, y),) = network(), batches(1)
    dense = copy.deepcopy(model.state_dict())
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=2.0**10), SGD(model.parameters(), lr=0.1)
    nested = pof.Nested(model, **HALF, rho=0.5)
    nested.backward(
        lambda: F.cross_entropy(model(x), y) * 3e38, lambda value: scaler.scale(value).backward(), loss_scale=1024.0
    )
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    for name, value in model.state_dict().items():
        assert torch.equal(value, dense[name]), name


def test_accelerate_with_accumulation() -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.state import AcceleratorState, GradientState, PartialState

    kinds = (AcceleratorState, GradientState, PartialState)
    for kind in kinds:
        kind._reset_state()
    try:
        engine = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        plain = network()
        model, optimizer = engine.prepare(copy.deepcopy(plain), SGD(plain.parameters(), lr=0.1))
        optimizer = engine.prepare(SGD(model.parameters(), lr=0.1))
        nested, reference = pof.Nested(model, **HALF), pof.Nested(plain, **HALF)
        stepper = SGD(plain.parameters(), lr=0.1)
        for x, y in batches(3, 16):
            for images, labels in zip(x.chunk(2), y.chunk(2), strict=True):
                with engine.accumulate(model):
                    nested.backward(
                        lambda images=images, labels=labels: F.cross_entropy(model(images), labels), engine.backward
                    )
                    optimizer.step()
                    optimizer.zero_grad()
            stepper.zero_grad()
            reference.backward(lambda x=x, y=y: F.cross_entropy(plain(x), y))
            stepper.step()
        for one, other in zip(engine.unwrap_model(model).parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other)
    finally:
        for kind in kinds:
            kind._reset_state()


def test_statistics_are_those_of_the_clean_pass_and_dropout_is_the_same_in_both() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
    clean, x = copy.deepcopy(model), torch.randn(32, 8)
    seen: list[Tensor] = []
    model[3].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach() == 0))
    torch.manual_seed(5)
    pof.Nested(model, **HALF).backward(lambda: model(x).square().mean())
    after = torch.rand(3)
    torch.manual_seed(5)
    clean(x)
    assert torch.equal(torch.rand(3), after), "the second pass leaves no trace in the random numbers"
    assert torch.equal(model[1].running_mean, clean[1].running_mean)
    assert torch.equal(model[1].running_var, clean[1].running_var)
    assert int(model[1].num_batches_tracked) == 1
    assert torch.equal(seen[0], seen[1])


def test_a_resumed_run_ends_with_the_same_bits() -> None:
    data = batches(6)

    def run(nested: pof.Nested, model: nn.Module, optimizer: SGD, steps: range) -> None:
        for step in steps:
            x, y = data[step]
            optimizer.zero_grad()

            def loss(x: Tensor = x, y: Tensor = y) -> tuple[Tensor, Tensor]:
                logits = model(x)
                return F.cross_entropy(logits, y), logits

            nested.backward(loss)
            optimizer.step()

    settings: dict[str, Any] = {"teacher": True, "clean": 0.5, "seed": 3}
    whole = network()
    start = copy.deepcopy(whole.state_dict())
    optimizer = SGD(whole.parameters(), lr=0.1)
    run(pof.Nested(whole, **settings), whole, optimizer, range(6))

    first = network()
    first.load_state_dict(start)
    nested = pof.Nested(first, **settings)
    run(nested, first, SGD(first.parameters(), lr=0.1), range(3))
    second = network()
    second.load_state_dict(first.state_dict())
    resumed = pof.Nested(second, **settings)
    resumed.load_state_dict(nested.state_dict())
    run(resumed, second, SGD(second.parameters(), lr=0.1), range(3, 6))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_a_teacher_sees_the_same_inputs_by_position_and_by_name() -> None:
    class Output:
        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 4)

        def forward(self, x: Tensor, *, scale: float) -> Output:
            return Output(self.fc(x) * scale)

    model, x, y = Named(), torch.randn(8, 6), torch.randint(4, (8,))
    before = copy.deepcopy(model)

    def loss() -> tuple[Tensor, Tensor]:
        logits = model(x, scale=2.0).logits
        return F.cross_entropy(logits, y), logits

    nested = pof.Nested(model, **HALF, distill=1.0, teacher=True)
    with torch.no_grad():
        model.fc.weight.add_(1.0)
    found = nested.backward(loss)
    wanted = F.kl_div(
        F.log_softmax(model(x, scale=2.0).logits, 1),
        F.log_softmax(before(x, scale=2.0).logits, 1),
        reduction="batchmean",
        log_target=True,
    )
    torch.testing.assert_close(found, wanted.detach())


def test_plan_and_memory_are_kept_between_steps() -> None:
    model, ((x, y),) = network(), batches(1)
    nested = pof.Nested(model, low=0.3, high=0.9)
    nested.backward(lambda: F.cross_entropy(model(x), y))
    places = [weight.dense.data_ptr() for weight in nested._pruned._weights]
    nested.backward(lambda: F.cross_entropy(model(x), y))
    assert [weight.dense.data_ptr() for weight in nested._pruned._weights] == places


def test_logits_of_sequences_are_compared_position_by_position() -> None:
    one, other = torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    flat = divergence(one.reshape(10, 4), other.reshape(10, 4), 2.0)
    torch.testing.assert_close(divergence(one, other, 2.0), flat)
    with pytest.raises(PofError, match="cannot be compared"):
        divergence(one, other[:, :4], 2.0)


def test_one_network_holds_where_plain_training_falls() -> None:
    from pof.data.digit_images import digits
    from pof.models import digits_convnet

    (images, labels), (test, answers) = digits("train"), digits("test")
    accuracy = {}
    for kind in ("plain", "nested"):
        torch.manual_seed(0)
        model = digits_convnet()
        nested, optimizer = pof.Nested(model, high=0.9), SGD(model.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(4):
            for batch in torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).split(64):
                optimizer.zero_grad()

                def loss(batch: Tensor = batch, model: nn.Module = model) -> Tensor:
                    return F.cross_entropy(model(images[batch]), labels[batch])

                nested.backward(loss) if kind == "nested" else loss().backward()
                optimizer.step()
        model.eval()
        elastic = pof.Elastic(model)
        with torch.no_grad(), elastic.at(0.9):
            elastic.calibrate([images])
            accuracy[kind] = float((model(test).argmax(1) == answers).float().mean())
    assert accuracy["nested"] > 0.9
    assert accuracy["nested"] > accuracy["plain"] + 0.1
