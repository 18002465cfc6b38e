"""Linear layers after a mean of images: mean, flatten and linear all work on images of one pixel."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from pof.runtime.program import Item, Layer, Operation, Program
from pof.runtime.value_layouts import Shape

aten = torch.ops.aten
FLATTEN = (aten.flatten.using_ints, aten.view.default, aten.reshape.default, aten.squeeze.dims)


@dataclass(frozen=True)
class FlatChains:
    """The parts of a program that can work on images of one pixel."""

    layers: dict[str, Layer]
    """The linear layers, as convolutions of such images, by name."""
    held: frozenset[str]
    """The two-dimensional values that are held as images."""
    skipped: frozenset[str]
    """The operations that are not needed then, as they only flatten."""


def flat_chains(program: Program, sparse: Sequence[Layer], shapes: Mapping[str, Shape]) -> FlatChains:
    """Find these parts among the layers that the sparse kernels compute."""
    items: dict[str, Item] = {item.name: item for item in program.items}
    uses = Counter(name for item in program.items for name in item.refs())
    uses.update(program.wanted())
    layers, held, skipped = dict[str, Layer](), set[str](), set[str]()
    for layer in sparse:
        source, before = layer.source, items.get(layer.source)
        if layer.kind != "linear" or layer.residual is not None or len(shapes.get(layer.name, ())) != 2:
            continue
        if isinstance(before, Operation) and before.target in FLATTEN and uses[source] == 1:
            image = before.refs()[0]
            if shapes.get(image, ()) != (*shapes[source], 1, 1) or not _is_mean(items.get(image)):
                continue
            skipped.add(source)
            source = image
        elif not _is_mean(before) or len(shapes[source]) != 2:
            continue
        else:
            held.add(source)
        held.add(layer.name)
        layers[layer.name] = replace(layer, kind="conv", source=source)
    return FlatChains(layers, frozenset(held), frozenset(skipped))


def is_mean_of_images(item: Operation) -> bool:
    """Whether the operation takes the mean over each whole image."""
    if item.kwargs:
        return False
    if item.target is aten.adaptive_avg_pool2d.default:
        return list(item.args[1]) == [1, 1]
    return item.target is aten.mean.dim and sorted(dim % 4 for dim in item.args[1]) == [2, 3]


def _is_mean(item: Item | None) -> bool:
    return isinstance(item, Operation) and is_mean_of_images(item)
