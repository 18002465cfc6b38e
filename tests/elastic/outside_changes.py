"""What others do to a model under a live Elastic, and the states in which it may happen."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

import pof
from tests.small_models import TwoNormNet, four_images


def step(model: nn.Module, make: Callable[..., torch.optim.Optimizer], **settings: Any) -> None:
    optimizer = make(model.parameters(), lr=0.01, **settings)
    dtype = next(model.parameters()).dtype
    model(four_images().to(dtype)).square().sum().backward()
    optimizer.step()


def load(model: nn.Module, **settings: Any) -> None:
    model.load_state_dict(TwoNormNet().state_dict(), **settings)


def replace_fc(model: Any, layer: nn.Module) -> None:
    model.fc = layer


def set_data(model: Any) -> None:
    model.fc.weight.data = torch.randn(6, 6)


def set_smaller_data(model: Any) -> None:
    model.fc.weight.data = torch.randn(3, 6)


def transpose_in_place(model: Any) -> None:
    """The same memory, shape and version: only the strides tell."""
    model.fc.weight.data = model.fc.weight.data.t()


@torch.no_grad()
def copy(model: Any) -> None:
    model.conv.weight.copy_(torch.randn(6, 4, 3, 3))


@torch.no_grad()
def nudge_one(model: Any) -> None:
    model.conv.weight[5, 3, 2, 1] += 1.0


def new_parameter(model: Any) -> None:
    model.fc.weight = nn.Parameter(torch.randn(6, 6))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda model: step(model, torch.optim.SGD),
    "sgd, foreach": lambda model: step(model, torch.optim.SGD, foreach=True, momentum=0.9),
    "adam, fused": lambda model: step(model, torch.optim.Adam, fused=True),
    "adamw": lambda model: step(model, torch.optim.AdamW, foreach=False),
    "load_state_dict": load,
    "load_state_dict, assign": lambda model: load(model, assign=True),
    "data.mul_": lambda model: model.conv.weight.data.mul_(1.01),
    "data.add_": lambda model: model.fc.weight.data.add_(0.5),
    "data = ": set_data,
    "data = of another shape": set_smaller_data,
    "transposed in place": transpose_in_place,
    "copy_": copy,
    "one weight": nudge_one,
    "half": lambda model: model.half(),
    "bfloat16 and back": lambda model: model.to(torch.bfloat16).float(),
    "double": lambda model: model.to(torch.float64),
    "fc only to float16": lambda model: model.fc.half(),
    "new parameter": new_parameter,
    "layer replaced": lambda model: replace_fc(model, nn.Linear(6, 6)),
    "layer replaced by a larger one": lambda model: replace_fc(model, nn.Linear(6, 60)),
    "layer removed": lambda model: replace_fc(model, nn.Identity()),
    "torch's own pruning": lambda model: torch_prune.l1_unstructured(model.fc, "weight", 0.5),
    "to the meta device": lambda model: model.fc.to_empty(device="meta"),
}


def never_left(elastic: pof.Elastic) -> None:
    del elastic


def back_to_dense(elastic: pof.Elastic) -> None:
    elastic.prune(0.4)
    elastic.restore()


def pruned(elastic: pof.Elastic) -> None:
    elastic.prune(0.5)


def recovered(elastic: pof.Elastic) -> None:
    elastic.recover(0.25, 0.75)


STATES = [never_left, back_to_dense, pruned, recovered]


def stored(model: nn.Module) -> dict[str, Tensor]:
    """A copy of what the model stores; `bits` cannot read meta tensors."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        (value.device, value.dtype) == (b[name].device, b[name].dtype)
        and (value.is_meta or torch.equal(value, b[name]))
        for name, value in a.items()
    )
