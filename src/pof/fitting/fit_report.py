"""What a fit has done, and the way back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pof.errors import PofError
from pof.terminal.text_table import text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FitStage:
    """One step of a fit."""

    name: str
    seconds: float
    remark: str = ""


@dataclass
class FitReport:
    """The result of `pof.fit`; prints as tables."""

    inputs: int
    """How many inputs (images, texts) the network was fitted to."""
    scope: str
    """How to rank the fitted network: pass it to `Elastic` and `pof.save`."""
    sparsities: tuple[float, ...]
    before: tuple[float, ...]
    """The distance of the outputs from those of the network as it came, at each sparsity, before the fit.

    It is measured on `held_out` inputs that the network was not fitted to. If that is 0, there were too few to set some
    aside, and it is measured on inputs that the network was fitted to: on others it is larger.
    """
    after: tuple[float, ...]
    stages: tuple[FitStage, ...] = ()
    layers_before: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """For each refitted weight, the share of its outputs' squares that is off at each sparsity but 0, before it."""
    layers_after: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The same after least squares."""
    not_refitted: Mapping[str, str] = field(default_factory=dict)
    """Weights that least squares left alone, and why."""
    advice: str = ""
    held_out: int = 0
    """How many of the inputs were set aside to measure with."""
    _model: nn.Module | None = field(default=None, repr=False)
    _original: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        header = ("", *(f"{sparsity:.0%}" for sparsity in self.sparsities))
        rows = [("before", *map(_figure, self.before)), ("fitted", *map(_figure, self.after))]
        lines = [f"fitted to {self.inputs:,} inputs, ranked with scope={self.scope!r}"]
        lines += [f"  {s.name}: {_duration(s.seconds)}{', ' + s.remark if s.remark else ''}" for s in self.stages]
        lines += [
            f"distance of the outputs, for {self._measured_on()}, from those of the network as it came:",
            text_table(header, rows),
        ]
        if self.layers_after:
            worst = sorted(self.layers_after, key=lambda name: -self.layers_after[name][-1])[:5]
            table = [(name, *(f"{error:.1%}" for error in self.layers_after[name])) for name in worst]
            lines += [
                "the layers with the largest errors after least squares:",
                text_table(("weight", *header[2 : len(table[0]) + 1]), table),
            ]
        if self.not_refitted:
            name, why = next(iter(self.not_refitted.items()))
            more = f" and {len(self.not_refitted) - 1} more" if len(self.not_refitted) > 1 else ""
            lines.append(f"not refitted: {name}{more} ({why})")
        return "\n".join([*lines, self.advice] if self.advice else lines)

    def _measured_on(self) -> str:
        return f"{self.held_out} more inputs" if self.held_out else "some of these inputs"

    @torch.no_grad()
    def undo(self) -> None:
        """Give the model back the weights and statistics that it came with, bit for bit.

        Raises:
            PofError: the model no longer has the tensors that it had, or they have other shapes; nothing is changed.
        """
        if self._model is None:
            raise PofError("this report has no model to undo: it was made without one")
        now = tensors_of(self._model)
        for name, tensor in self._original.items():
            if name not in now or now[name].shape != tensor.shape:
                raise PofError(f"{name!r} was removed or has another shape since the fit: it cannot be undone")
        for name, tensor in self._original.items():
            now[name].copy_(tensor)

    def plot(self) -> "Figure":
        """A figure of the distances over the sparsities, before and after; needs matplotlib."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise PofError("report.plot() needs matplotlib: pip install 'pof[plot]'") from None
        figure = Figure(figsize=(6, 3.6), layout="constrained")
        axes = figure.subplots()
        for name, values in (("before", self.before), ("fitted", self.after)):
            axes.plot([100 * sparsity for sparsity in self.sparsities], values, marker="o", label=name)
        axes.set_xlabel("sparsity, %")
        axes.set_ylabel("distance from the network as it came")
        axes.set_yscale("log")
        axes.legend(frameon=False)
        return figure


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of `model` by name, the ones that are not saved included."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    found.update(model.named_buffers())
    return found


def _figure(value: float) -> str:
    return f"{value:.3g}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def as_record(report: FitReport) -> dict[str, Any]:
    """The figures of a report as plain data."""
    return {
        "inputs": report.inputs,
        "held_out": report.held_out,
        "scope": report.scope,
        "sparsities": list(report.sparsities),
        "before": list(report.before),
        "after": list(report.after),
        "stages": [{"name": s.name, "seconds": round(s.seconds, 1), "remark": s.remark} for s in report.stages],
        "not_refitted": dict(report.not_refitted),
        "advice": report.advice,
    }
