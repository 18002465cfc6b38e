"""Which weights of a model are pruned: the plan.

Every convolution and linear layer takes part, subclasses too, but the first convolution (as in the paper).
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import UninitializedParameter
from torch.optim.swa_utils import AveragedModel

from pof.errors import PlanError
from pof.globs import as_globs, matches, refuse_unmatched
from pof.magnitude import check_sparsity
from pof.prunable import extent, identity, overlap, refuse_sharded, refuse_unprunable
from pof.table import text_table

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
FIRST = "the first convolution"
EXCLUDED = "excluded"
EMPTY = "it has no elements"
EMBEDDED = "it is tied to an embedding: untie it to prune it"
SILENT = (FIRST, EXCLUDED, EMPTY)
"""Reasons to leave a weight out that need no warning; all others were not asked for."""
RECURRENT = "recurrent layers are not pruned"
ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


@dataclass(frozen=True)
class Entry:
    """One weight that is pruned."""

    name: str
    kind: str
    shape: tuple[int, ...]
    groups: int | None = None
    """The groups of a layer whose output units lie in dimension 1, such as a transposed convolution; else None."""
    sparsity: float | None = None
    """Fixed for this weight whenever the model is not dense; None follows what is asked for."""
    tied: tuple[str, ...] = ()
    """Other names of the same weight."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names of the weight."""
        return (self.name, *self.tied)

    @property
    def weights(self) -> int:
        """How many there are."""
        return torch.Size(self.shape).numel()

    def rows(self, weight: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """A view of `weight` (of this entry's shape) by rows, and the dimensions that make up one row."""
        if self.groups is None:
            return weight, tuple(range(1, weight.dim()))
        view = weight.unflatten(0, (self.groups, -1))
        return view, (1, *range(3, view.dim()))


@dataclass(frozen=True)
class Plan:
    """The weights that are pruned, and those that are not and why; prints as a table."""

    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def weights(self) -> int:
        """How many weights take part in all."""
        return sum(entry.weights for entry in self.entries)

    def parameters(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters of `model` that the plan names."""
        bare = unwrap(model)
        return {entry.name: bare.get_parameter(entry.name) for entry in self.entries}

    def __str__(self) -> str:
        rows = [(e.name, e.kind, "x".join(map(str, e.shape)), e.weights, _remark(e)) for e in self.entries]
        lines = [text_table(("weight", "layer", "shape", "weights", ""), rows)]
        lines += [f"left out: {name} ({reason})" for name, reason in self.left_out]
        tensors = "tensor" if len(self.entries) == 1 else "tensors"
        lines.append(f"{self.weights:,} weights in {len(self.entries)} {tensors} are pruned")
        return "\n".join(lines)

    __repr__ = __str__


def plan(
    model: nn.Module,
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    sparsities: Mapping[str, float] | None = None,
) -> Plan:
    """Which weights of `model` are pruned.

    Args:
        model: any module, also inside DistributedDataParallel, an AveragedModel or torch.compile's wrapper.
        include: globs on module or weight names; when given, only what matches takes part (the first convolution too).
        exclude: globs on module or weight names that take no part.
        sparsities: fixed sparsities by glob, such as `{"fc": 0.5}`; the last glob that matches counts.

    Returns:
        the plan, one entry a weight. Tied weights are one entry.

    Example:
        >>> print(plan(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))))
        weight    layer   shape  weights
        2.weight  Linear  4x8         32
        left out: 0.weight (the first convolution)
        32 weights in 1 tensor are pruned
    """
    if not isinstance(model, nn.Module):
        kind = model.__name__ + ", not called yet" if callable(model) else f"a {type(model).__name__}"
        raise PlanError(f"model is {kind}: pass a torch.nn.Module, such as pof.models.resnet20()")
    bare = unwrap(model)
    refuse_sharded(bare)
    found, left_out = _find(bare)
    include, exclude = as_globs(include, "include"), as_globs(exclude, "exclude")
    known = [*(entry.names for entry, _ in found), *((name,) for name, _ in left_out)]
    refuse_unmatched(include, "include", known)
    refuse_unmatched(exclude, "exclude", known)
    left_out = [(name, EXCLUDED if not _wanted((name,), include, exclude) else why) for name, why in left_out]
    entries = []
    for entry, first in found:
        if not _wanted(entry.names, include, exclude):
            left_out.append((entry.name, EXCLUDED))
        elif first and not include:
            left_out.append((entry.name, FIRST))
        else:
            entries.append(entry)
    if not entries:
        raise PlanError(_nothing(bare, left_out))
    for name, reason in left_out:
        if reason not in SILENT:
            warnings.warn(f"{name} is not pruned: {reason}", UserWarning, stacklevel=_frames_to_user())
    for entry in entries:
        refuse_unprunable(entry.name, bare.get_parameter(entry.name))
    return Plan(tuple(_with_sparsities(entries, left_out, {} if sparsities is None else sparsities)), tuple(left_out))


def _wanted(names: Iterable[str], include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    return not matches(names, exclude) and (not include or matches(names, include))


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DistributedDataParallel, an average of weights, or the wrapper of torch.compile."""
    while True:
        if isinstance(model, (DistributedDataParallel, nn.DataParallel, AveragedModel)):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _find(model: nn.Module) -> tuple[list[tuple[Entry, bool]], list[tuple[str, str]]]:
    """Everything that could be pruned, each with whether it is the first convolution; and what cannot, and why."""
    embeddings = [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    first = next((module for module in model.modules() if isinstance(module, CONVOLUTIONS)), None)
    found: dict[object, tuple[Entry, bool]] = {}
    memory = [(extent(module.weight), EMBEDDED) for module in embeddings]
    left_out = []
    for path, module in model.named_modules(remove_duplicate=False):
        if type(module).__module__.startswith("torch.ao.nn.") and callable(getattr(module, "weight", None)):
            left_out.append((f"{path}.weight", "it is quantised: prune before quantising"))
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
            left_out += [(f"{path}.{own}".lstrip("."), RECURRENT) for own in module._parameters if "weight" in own]
        for attribute in _weight_names(module):
            name = f"{path}.{attribute}" if path else attribute
            weight = module._parameters.get(attribute)
            if weight is None:
                left_out.append((name, "it is no parameter (a parametrisation, an old mask, a buffer): make it one"))
            elif (key := identity(weight)) in found:
                entry, is_first = found[key]
                found[key] = (replace(entry, tied=(*entry.tied, name)), is_first)
            elif not isinstance(weight, UninitializedParameter) and weight.numel() == 0:
                left_out.append((name, EMPTY))
            elif taken := [why for place, why in memory if overlap(place, extent(weight))]:
                left_out.append((name, taken[0]))
            else:
                found[key] = (_entry(name, module, weight), module is first)
                memory.append((extent(weight), f"it shares memory with {name}, in another shape, and follows that"))
    return list(found.values()), left_out


def _weight_names(module: nn.Module) -> tuple[str, ...]:
    if isinstance(module, (*CONVOLUTIONS, nn.Linear)) or _is_transposed_linear(module):
        return ("weight",)
    if isinstance(module, nn.MultiheadAttention):
        return tuple(name for name in ATTENTION_WEIGHTS if getattr(module, name) is not None)
    return ()


def _is_transposed_linear(module: nn.Module) -> bool:
    """Whether it is the Conv1D of GPT-2 and the like in transformers: a linear layer that keeps its weight in x out."""
    return any(
        kind.__name__ == "Conv1D" and kind.__module__ == "transformers.pytorch_utils" for kind in type(module).__mro__
    )


def _entry(name: str, module: nn.Module, weight: nn.Parameter) -> Entry:
    shape = () if isinstance(weight, UninitializedParameter) else tuple(weight.shape)
    groups = module.groups if isinstance(module, TRANSPOSED) else 1 if _is_transposed_linear(module) else None
    return Entry(name, type(module).__name__, shape, groups)


def _frames_to_user() -> int:
    """How far up the stack the user's own line is, for `warnings.warn` in our caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pof."):
        frame, level = frame.f_back, level + 1
    return level


def _with_sparsities(
    entries: list[Entry], left_out: list[tuple[str, str]], sparsities: Mapping[str, float]
) -> list[Entry]:
    if not isinstance(sparsities, Mapping):
        raise PlanError(f"sparsities={sparsities!r} must map names or globs to sparsities, such as {{'fc': 0.5}}")
    for glob in sparsities:
        for name, reason in left_out:
            if matches((name,), (glob,)) and not any(matches(entry.names, (glob,)) for entry in entries):
                raise PlanError(f"sparsities={glob!r}: {name} takes no part ({reason}); include= takes it in")
    refuse_unmatched(sparsities, "sparsities", [entry.names for entry in entries])
    fixed: dict[str, float] = {}
    for glob, value in sparsities.items():
        sparsity = check_sparsity(value, f"sparsities[{glob!r}]")
        fixed.update((entry.name, sparsity) for entry in entries if matches(entry.names, (glob,)))
    return [replace(entry, sparsity=fixed.get(entry.name)) for entry in entries]


def _nothing(model: nn.Module, left_out: list[tuple[str, str]]) -> str:
    message = f"nothing to prune in {type(model).__name__}: "
    if not left_out:
        return message + "it has no convolution or linear layer"
    name, reason = left_out[0]
    remedy = f"; include=({name!r},) takes it in" if reason == FIRST else ""
    return message + f"{name} is left out ({reason}){remedy}"


def _remark(entry: Entry) -> str:
    remarks = [f"tied: {name}" for name in entry.tied]
    if entry.sparsity is not None:
        remarks.append(f"always {entry.sparsity:g}")
    return ", ".join(remarks)
