"""A second pass in one step, at other weights and without side effects: for `pof.Nested` and methods such as CrAM."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pof.elastic.live_model import forget_casts

RandomStates = dict[str, Tensor]
"""The states of torch's random number generators, by device."""


@contextmanager
def second_pass(model: nn.Module, random: RandomStates, distance: float, weight: float = 1.0) -> Iterator[None]:
    """Make the block a second pass, whose gradients, times `weight`, are added to those of the first.

    `random` is the state that the first pass began with, so that both draw the same numbers. Inside the block the
    parameters are moved by `distance` along the gradients that they have. After it, parameters, buffers (BatchNorm
    statistics) and random states are what they were before.

    The gradients of the first pass stay where they are: DistributedDataParallel averages whatever has accumulated, and
    parts of a batch that were not exchanged yet must take part in that.
    """
    trained = [p for p in model.parameters() if p.grad is not None]
    scaled = [p for p in model.parameters() if p.requires_grad] if weight != 1.0 else []
    hooks = [parameter.register_hook(lambda gradient: gradient * weight) for parameter in scaled]
    # Half precision overflows now and then: such gradients lead nowhere, and the step will be skipped.
    clean = [p.grad.clone() for p in trained if p.grad is not None] if distance else []
    uphill = moved(trained, clean, distance) if distance and gradients_are_finite(clean) else nullcontext()
    try:
        with uphill, without_trace(model, random):
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def moved(parameters: Sequence[nn.Parameter], directions: Sequence[Tensor], distance: float) -> Iterator[None]:
    """Move the parameters by `distance` along `directions` inside the block, and back after it, bit for bit."""
    before = [parameter.detach().clone() for parameter in parameters]
    try:
        with torch.no_grad():
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter.add_(direction, alpha=distance)
        forget_casts()
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(parameters, before, strict=True):
                parameter.copy_(values)
        forget_casts()


@contextmanager
def without_trace(model: nn.Module, random: RandomStates) -> Iterator[None]:
    """Draw random numbers from the state `random` inside the block; put random states and buffers back after it."""
    buffers, after = _buffers(model), random_states(model)
    kept = [buffer.detach().clone() for *_, buffer in buffers]
    try:
        _set_random_states(random)
        yield
    finally:
        _set_random_states(after)
        with torch.no_grad():
            for (owner, name, buffer), values in zip(buffers, kept, strict=True):
                owner[name] = buffer.copy_(values)


def step_generator(seed: int, step: int) -> torch.Generator:
    """A generator that depends only on `seed` and `step`: all ranks and resumed runs draw the same numbers."""
    mixed = np.random.SeedSequence((seed % 2**64, step)).generate_state(1)
    return torch.Generator().manual_seed(int(mixed[0]))


def gradients_are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether no tensor has a NaN or an infinity. Waits only once for each device."""
    found: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor.isfinite().all())
    return all(bool(torch.stack(each).all()) for each in found.values())


def _buffers(model: nn.Module) -> list[tuple[dict[str, Tensor | None], str, Tensor]]:
    """All buffers of all modules, each with the dictionary that holds it and its name there."""
    owners = [module._buffers for module in model.modules()]
    return [(owner, name, buffer) for owner in owners for name, buffer in owner.items() if buffer is not None]


def random_states(model: nn.Module) -> RandomStates:
    """The states of the random number generators that a pass of `model` may use."""
    devices = {str(p.device) for p in model.parameters() if p.device.type == "cuda"}
    return {"cpu": torch.get_rng_state(), **{device: torch.cuda.get_rng_state(device) for device in devices}}


def loss_scale(optimizer: Optimizer) -> float:
    """The factor by which half precision scales the gradients; accelerate's optimiser knows the scaler."""
    scaler = getattr(optimizer, "scaler", None)
    return 1.0 if scaler is None else float(scaler.get_scale())


def _set_random_states(states: RandomStates) -> None:
    for device, state in states.items():
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)
