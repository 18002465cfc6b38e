"""What the layers of a network see: for each, the products of its inputs with each other, summed over batches."""

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pof.elastic.batch_statistics import run_batch
from pof.planning.layer_kinds import CONVOLUTIONS, is_transposed_linear
from pof.planning.pruning_plan import Plan

POSITIONS = 49
"""How many positions of an image, or tokens of a text, are looked at: neighbours tell much the same."""
MOST_BYTES = 2 << 30
"""How much memory the products of all layers may take at a time."""


class RefittableLayer:
    """A layer whose outputs are linear in its weight, with the weight as (groups, rows, inputs)."""

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter) -> None:
        self.name, self.module, self.weight = name, module, weight
        self._last = is_transposed_linear(module)
        self.groups = int(getattr(module, "groups", 1)) if isinstance(module, CONVOLUTIONS) else 1

    @property
    def inputs(self) -> int:
        """How many inputs each output is computed from."""
        return self.weight.shape[0] if self._last else self.weight[0].numel()

    @property
    def gram_bytes(self) -> int:
        """How many bytes the products of its inputs take."""
        return 4 * self.groups * self.inputs**2

    def rows(self, values: Tensor) -> Tensor:
        """`values`, in the shape of the weight, as (groups, rows, inputs)."""
        if self._last:
            return values.t()[None]
        return values.reshape(self.groups, values.shape[0] // self.groups, -1)

    def as_weight(self, rows: Tensor) -> Tensor:
        """The inverse of `rows`."""
        return rows[0].t() if self._last else rows.reshape(self.weight.shape)

    def columns(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Samples of what the rows are multiplied with, as (groups, inputs, samples)."""
        if not isinstance(self.module, CONVOLUTIONS):
            flat = x.reshape(-1, x.shape[-1])
            most = POSITIONS * (len(x) if x.dim() > 1 else 1)
            if len(flat) > most:
                flat = flat[torch.randperm(len(flat), generator=generator)[:most].to(x.device)]
            return flat.t()[None]
        windows = _windows(self.module, x)
        sizes = windows.shape[2 : x.dim()]
        count = sizes.numel()
        chosen = torch.randperm(count, generator=generator)[:POSITIONS].to(x.device)
        places: tuple[Any, ...] = torch.unravel_index(chosen, sizes)
        everything = slice(None)
        picked: Tensor = windows[(everything, everything) + places]  # noqa: RUF005 (no stars in an index before 3.11)
        by_group = picked.unflatten(1, (self.groups, -1)).movedim((1, 2), (0, 1))
        # (groups, channels, images, positions, *kernel) becomes (groups, channels and kernel, images and positions).
        found: Tensor = by_group.flatten(4).movedim(4, 2).flatten(3).flatten(1, 2)
        return found


def _windows(module: Any, x: Tensor) -> Tensor:
    """A view of the padded input as (images, channels, *positions, *kernel)."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    x = F.pad(x, module._reversed_padding_repeated_twice, mode=mode)
    for axis, (size, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True)
    ):
        x = x.unfold(2 + axis, (size - 1) * dilation + 1, stride)[..., ::dilation]
    return x


def refittable_layers(model: nn.Module, plan: Plan) -> tuple[list[RefittableLayer], dict[str, str]]:
    """The layers of the plan that least squares can refit; for the others, by name, why not."""
    owners = {
        f"{prefix}.{name}".lstrip("."): module
        for prefix, module in model.named_modules()
        for name in module._parameters
    }
    found, others = [], {}
    for entry in plan:
        module = owners[entry.name]
        if entry.tied:
            others[entry.name] = "several layers share it"
        elif isinstance(module, (nn.Linear, *CONVOLUTIONS)) or is_transposed_linear(module):
            found.append(RefittableLayer(entry.name, module, model.get_parameter(entry.name)))
        else:
            others[entry.name] = f"{entry.kind} is not refitted, only trained"
    return found, others


def in_waves(layers: Iterable[RefittableLayer]) -> Iterator[list[RefittableLayer]]:
    """The layers in groups whose products fit into `MOST_BYTES`; a layer that does not fit is alone."""
    wave: list[RefittableLayer] = []
    for layer in layers:
        if wave and sum(each.gram_bytes for each in (*wave, layer)) > MOST_BYTES:
            yield wave
            wave = []
        wave.append(layer)
    if wave:
        yield wave


@torch.no_grad()
def input_grams(
    model: nn.Module,
    layers: Iterable[RefittableLayer],
    batches: Iterable[Any],
    centred: Container[str] = (),
    seed: int = 0,
) -> dict[str, Tensor]:
    """The products X X^T of the inputs of `layers`, by name; a layer that saw no input is left out.

    Layers in `centred` have the mean of their inputs taken out first: what a BatchNorm behind them takes out anyway.
    """
    sums: dict[str, _Sums] = {}
    generator = torch.Generator().manual_seed(seed)
    with _watching(layers, sums, centred, generator):
        for batch in batches:
            run_batch(model, batch)
    return {name: found.result() for name, found in sums.items()}


class _Sums:
    """Sums over samples of the inputs of one layer.

    To centre inputs, the mean of the first batch is taken out of all of them, and what is left of the mean at the end:
    taking out all of a large mean at the end would leave nothing but rounding errors.
    """

    def __init__(self, columns: Tensor, centred: bool) -> None:
        self._shift = columns.mean(2, keepdim=True) if centred else None
        self._inputs = torch.zeros_like(columns[:, :, :1])
        self._products = self._inputs @ self._inputs.transpose(1, 2)
        self._count = 0

    def add(self, columns: Tensor) -> None:
        """Add samples of inputs, (groups, inputs, samples)."""
        if self._shift is not None:
            columns = columns - self._shift
            self._inputs.add_(columns.sum(2, keepdim=True))
        self._products.add_(columns @ columns.transpose(1, 2))
        self._count += columns.shape[2]

    def result(self) -> Tensor:
        """The products, (groups, inputs, inputs)."""
        if self._shift is None:
            return self._products
        return self._products.sub_(self._inputs @ self._inputs.transpose(1, 2) / self._count)


@contextmanager
def _watching(
    layers: Iterable[RefittableLayer], sums: dict[str, _Sums], centred: Container[str], generator: torch.Generator
) -> Iterator[None]:
    def hook_of(layer: RefittableLayer) -> Any:
        def look(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            x = args[0] if args else next(iter(kwargs.values()))
            columns = layer.columns(x.detach(), generator).float()
            # The network may run in half precision, but sums of products need more.
            with torch.autocast(columns.device.type, enabled=False):
                if layer.name not in sums:
                    sums[layer.name] = _Sums(columns, layer.name in centred)
                sums[layer.name].add(columns)

        return look

    hooks = [layer.module.register_forward_pre_hook(hook_of(layer), with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
