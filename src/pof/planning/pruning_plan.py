"""The plan: which weights of a model are pruned.

Every convolution and linear layer takes part, subclasses too, except the first convolution (as in the paper).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import nn

from pof.errors import PlanError, warn
from pof.planning.discovery import BIAS, EMBEDDING, EMPTY, UNKNOWN, LeftOut, count_weights, find_weights
from pof.planning.entry import Entry
from pof.planning.name_globs import as_globs, matches, refuse_unmatched
from pof.planning.refusals import refuse_sharded, refuse_unprunable
from pof.planning.wrappers import unwrap
from pof.ranking.sparsity import check_sparsity
from pof.terminal.text_table import text_table

FIRST = "the first convolution"
EXCLUDED = "excluded"
LARGE_SHARE = 0.1
"""The share of a model that layers of no known kind may hold before a plan warns of them."""
SILENT = (FIRST, EXCLUDED, EMPTY, EMBEDDING, BIAS)
"""Reasons for leaving a weight out that need no warning, because they are expected."""


@dataclass(frozen=True)
class Plan:
    """The weights that are pruned, and those that are left out and why; prints as a table."""

    entries: tuple[Entry, ...]
    left_out: tuple[tuple[str, str], ...]
    total: int = 0
    """How many numbers all parameters of the model hold."""

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def weights(self) -> int:
        """How many weights take part, over all tensors."""
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
        share = f", {self.weights / self.total:.1%} of the model's {self.total:,}" if self.total else ""
        lines.append(f"{self.weights:,} weights in {len(self.entries)} {tensors} are pruned{share}")
        return "\n".join(lines)

    __repr__ = __str__


def plan(
    model: nn.Module,
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    sparsities: Mapping[str, float] | None = None,
) -> Plan:
    """Plan which weights of `model` are pruned.

    Args:
        model: any module, also inside DistributedDataParallel, an AveragedModel or torch.compile's wrapper.
        include: globs for module or weight names; if given, only those take part (even the first convolution).
        exclude: globs for the names of modules or weights that take no part.
        sparsities: fixed sparsities by glob, such as `{"fc": 0.5}`; the last glob that matches counts.

    Returns:
        the plan, one entry per weight tensor. Tied weights are one entry.

    Example:
        >>> print(plan(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))))
        weight    layer   shape  weights
        2.weight  Linear  4x8         32
        left out: 0.weight (the first convolution)
        32 weights in 1 tensor are pruned, 57.1% of the model's 56
    """
    if not isinstance(model, nn.Module):
        kind = model.__name__ + ", not called yet" if callable(model) else f"a {type(model).__name__}"
        raise PlanError(f"model is {kind}: pass a torch.nn.Module, such as pof.models.resnet20()")
    bare = unwrap(model)
    refuse_sharded(bare)
    found, left_out, doubtful = find_weights(bare)
    include, exclude = as_globs(include, "include"), as_globs(exclude, "exclude")
    known = [*(entry.names for entry, _ in found), *((name,) for name, _ in left_out)]
    refuse_unmatched(include, "include", known)
    refuse_unmatched(exclude, "exclude", known)
    _refuse_unprunable_globs(include, found, left_out)
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
    total = count_weights(bare.parameters())
    if worth_a_warning := _worth_a_warning(bare, left_out, total):
        (name, reason), *others = worth_a_warning
        more = f" and {len(others)} more are" if others else " is"
        warn(f"{name}{more} not pruned: {reason}")
    if not include and (unsure := [entry.name for entry in entries if entry.name in doubtful]):
        more = f" and {len(unsure) - 1} more" if len(unsure) > 1 else ""
        warn(
            f"{unsure[0]}{more}: pof cannot see how this weight is used. If it is standardised first, or changed in "
            "another way, zeros do not stay zero: then exclude it"
        )
    for entry in entries:
        refuse_unprunable(entry.name, bare.get_parameter(entry.name))
    chosen = _with_sparsities(entries, left_out, {} if sparsities is None else sparsities)
    return Plan(tuple(chosen), tuple(left_out), total)


def _refuse_unprunable_globs(
    include: tuple[str, ...], found: list[tuple[Entry, bool]], left_out: list[LeftOut]
) -> None:
    """Raise if a glob of `include` matches nothing but weights that cannot be pruned."""
    for glob in include:
        if not any(matches(entry.names, (glob,)) for entry, _ in found):
            name, reason = next((name, reason) for name, reason in left_out if matches((name,), (glob,)))
            raise PlanError(f"nothing to prune for include={glob!r}: {name} is left out ({reason})")


def _worth_a_warning(model: nn.Module, left_out: list[LeftOut], total: int) -> list[LeftOut]:
    """What was left out unasked, if it matters: layers of no known kind do only if they are large."""
    unknown = [name for name, reason in left_out if reason.endswith(UNKNOWN)]
    large = count_weights(map(model.get_parameter, unknown)) > LARGE_SHARE * total
    return [
        (name, reason) for name, reason in left_out if reason not in SILENT and (large or not reason.endswith(UNKNOWN))
    ]


def _wanted(names: Iterable[str], include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    return not matches(names, exclude) and (not include or matches(names, include))


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
    asked = [(name, reason) for name, reason in left_out if reason != EXCLUDED]
    name, reason = (asked or left_out)[0]
    remedy = f"; include=({name!r},) takes it in" if reason == FIRST else ""
    return message + f"{name} is left out ({reason}){remedy}"


def _remark(entry: Entry) -> str:
    remarks = [f"tied: {name}" for name in entry.tied]
    if entry.sparsity is not None:
        remarks.append(f"always {entry.sparsity:g}")
    return ", ".join(remarks)
