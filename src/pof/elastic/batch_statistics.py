"""BatchNorm statistics: each state of the weights has its own, estimated from a few batches without training."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import UninitializedBuffer

from pof.errors import PofError

Statistics = list[Tensor]
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
SILENT = 1e-6
"""A channel whose variance is below this share of the former one carries nothing."""


def norm_layers(model: nn.Module) -> list[_NormBase]:
    """The layers of `model` that keep running statistics."""
    layers = [m for m in model.modules() if isinstance(m, _NormBase) and m.running_mean is not None]
    if any(isinstance(layer.running_mean, UninitializedBuffer) for layer in layers):
        raise PofError("a lazy normalisation layer has no statistics yet: run one batch through the model first")
    return layers


def unknown_norms(model: nn.Module) -> list[str]:
    """The names of layers that hold statistics, but are of no kind that can estimate them: frozen ones, say."""
    return [
        name or type(module).__name__
        for name, module in model.named_modules()
        if not isinstance(module, _NormBase) and {"running_mean", "running_var"} <= module._buffers.keys()
    ]


def buffers(layers: Iterable[_NormBase]) -> Statistics:
    """The live tensors that hold the statistics of `layers`."""
    found = (getattr(layer, name) for layer in layers for name in BUFFERS)
    return [buffer for buffer in found if buffer is not None]


def read_statistics(layers: Iterable[_NormBase]) -> Statistics:
    """A copy of the statistics of `layers`."""
    return [buffer.clone() for buffer in buffers(layers)]


@torch.no_grad()
def write_statistics(layers: Iterable[_NormBase], statistics: Statistics) -> None:
    """Restore what `read_statistics` returned."""
    for buffer, value in zip(buffers(layers), statistics, strict=True):
        buffer.copy_(value)


class StateStatistics:
    """The statistics of a model, by state.

    A state has the original statistics, those of the model when this object is made, until they change in that state.
    From then on it has its own. A state is any hashable name.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._layers = norm_layers(model)
        self._original = self._loaded = read_statistics(self._layers)
        self._own: dict[Hashable, Statistics] = {}

    def same_layers(self) -> bool:
        """Whether the model still has its original normalisation layers, with their original sizes."""
        now = norm_layers(self._model)
        same = len(now) == len(self._layers) and all(a is b for a, b in zip(now, self._layers, strict=True))
        return same and self._same_sizes()

    def leave(self, state: Hashable) -> None:
        """Remember the statistics that were estimated (or trained) since `state` was entered."""
        # Compared by value: torch does not count every change of a running statistic.
        if not all(map(torch.equal, buffers(self._layers), self._loaded)):
            self._own[state] = self._loaded = read_statistics(self._layers)

    def enter(self, state: Hashable) -> None:
        """Load the statistics of `state`. Call `leave` for the previous state first."""
        wanted = self.of(state)
        if wanted is not self._loaded:
            # Unknown until everything is written, so that an interrupted write is repeated.
            self._loaded = []
            write_statistics(self._layers, wanted)
            self._loaded = wanted

    def of(self, state: Hashable) -> Statistics:
        """The statistics that `state` has when it is entered."""
        return self._own.get(state, self._original)

    def forget(self, state: Hashable) -> None:
        """Give `state` the original statistics again when it is next entered."""
        self._own.pop(state, None)

    def force_original(self) -> None:
        """Overwrite the statistics of the original layers with the original ones, unless a size has changed."""
        if self._same_sizes():
            write_statistics(self._layers, self._original)
            self._loaded = self._original

    def _same_sizes(self) -> bool:
        return [b.shape for b in buffers(self._layers)] == [b.shape for b in self._original]


def check_batches(batches: object) -> None:
    """Raise unless `batches` is an iterable of batches, such as a list."""
    if isinstance(batches, (Tensor, Mapping)) or not isinstance(batches, Iterable):
        raise PofError(
            f"batches is a {type(batches).__name__}: pass a list or another iterable of batches, such as [batch]"
        )


def estimate_statistics(model: nn.Module, batches: Iterable[Any]) -> int:
    """Replace the statistics of `model` with the average over `batches`; return how many batches there were.

    A batch is a tensor, a tuple or list whose first element is the input, or a dict of keyword arguments. Everything
    except the normalisation layers runs in evaluation mode. Modes and momenta are put back afterwards. If an error
    occurs, so are the statistics. A channel that has become constant keeps its variance.
    """
    layers = norm_layers(model)
    before = [None if layer.running_var is None else layer.running_var.clone() for layer in layers]
    count = _estimate(model, layers, batches)
    for layer, variance in zip(layers, before, strict=True):
        if layer.running_var is not None and variance is not None:
            layer.running_var.copy_(torch.where(is_silent(variance, layer.running_var), variance, layer.running_var))
    return count


def estimated(model: nn.Module, batches: Iterable[Any]) -> Statistics:
    """The averages over `batches`, as they are; the statistics of `model` do not change."""
    layers = norm_layers(model)
    before = read_statistics(layers)
    _estimate(model, layers, batches)
    found = read_statistics(layers)
    write_statistics(layers, before)
    return found


def is_silent(dense: Tensor, state: Tensor) -> Tensor:
    """Which channels have become constant, by their variances before and now.

    A constant channel has no scale of its own: dividing by almost nothing would only magnify rounding errors.
    """
    return (state.double() <= SILENT * dense.double()) & dense.isfinite()


def _estimate(model: nn.Module, layers: list[_NormBase], batches: Iterable[Any]) -> int:
    check_batches(batches)
    before = read_statistics(layers)
    count = 0
    try:
        with _averaging(model, layers), torch.no_grad():
            for batch in batches:
                for layer in layers:
                    # BatchNorm averages by itself if it counts batches; other layers do not accept momentum=None.
                    counts = isinstance(layer, _BatchNorm) and layer.num_batches_tracked is not None
                    layer.momentum = None if counts else 1.0 / (count + 1)
                run_batch(model, batch)
                count += 1
        _check(layers, count)
    except BaseException as error:
        write_statistics(layers, before)
        if isinstance(error, ValueError) and "more than 1 value per channel" in str(error):
            raise PofError(
                f"batch {count} has one value per channel, which has no variance: drop it (drop_last=True)"
            ) from error
        raise
    _keep_unreached(layers, before)
    return count


def _keep_unreached(layers: list[_NormBase], before: Statistics) -> None:
    """Give layers that no batch has reached, such as those of a head that is not used, their statistics back."""
    for live, value in zip(_by_layer(layers, buffers(layers)), _by_layer(layers, before), strict=True):
        if not bool(live[0].any()) and bool((live[1] == 1).all()):
            for buffer, kept in zip(live, value, strict=True):
                buffer.copy_(kept)


def _by_layer(layers: list[_NormBase], statistics: Statistics) -> list[Statistics]:
    """Statistics in parts, one for each layer."""
    sizes = [sum(getattr(layer, name) is not None for name in BUFFERS) for layer in layers]
    parts = iter(statistics)
    return [[next(parts) for _ in range(size)] for size in sizes]


@contextmanager
def _averaging(model: nn.Module, layers: list[_NormBase]) -> Iterator[None]:
    """Let the normalisation layers learn their statistics afresh, with everything else in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    settings = [(layer.momentum, layer.track_running_stats) for layer in layers]
    try:
        # Set one by one: `model.eval()` would run the `train` method of layers that override it.
        for module, _ in modes:
            module.training = False
        for layer in layers:
            _reset(layer)
            # A layer may hold statistics that it uses but no longer tracks.
            layer.training = layer.track_running_stats = True
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for layer, (momentum, tracks) in zip(layers, settings, strict=True):
            layer.momentum, layer.track_running_stats = momentum, tracks


def _reset(layer: _NormBase) -> None:
    """Reset the statistics, as `reset_running_stats` does; that fails on layers that do not count batches."""
    for name, start in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
        buffer = getattr(layer, name)
        if buffer is not None:
            buffer.fill_(start)


def run_batch(model: nn.Module, batch: Any) -> Any:
    """The outputs of `model` for a batch: a tensor, a tuple or list that begins with the input, or a dict of inputs."""
    device = next((tensor.device for tensor in model.parameters()), torch.device("cpu"))
    if isinstance(batch, Mapping):
        return model(**{name: _on(value, device) for name, value in batch.items()})
    return model(_on(batch[0] if isinstance(batch, (tuple, list)) else batch, device))


def _on(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _check(layers: list[_NormBase], count: int) -> None:
    if count == 0:
        raise PofError("batches is empty: pass at least one batch of inputs (2,000 images are plenty)")
    if not all(bool(torch.isfinite(buffer).all()) for buffer in buffers(layers)):
        raise PofError("the batches gave statistics with NaN or inf: look for NaN or inf in the inputs")
