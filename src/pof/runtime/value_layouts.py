"""The geometry of each value that a sparse layer, or a pool of our own, reads or writes.

A convolution without a stride is a flat pass only if the rows of its input and its output are equally far apart, and
an addition is one only if both values have the same layout. So values that meet in either form a family, with one
pitch and one padding.
"""

from collections.abc import Mapping, Sequence

from pof.runtime.image_geometry import Geometry, lanes_for
from pof.runtime.program import Layer

Shape = tuple[int, ...]


class Layouts:
    """The geometries for one size of input."""

    def __init__(
        self, layers: Sequence[Layer], reaches: Mapping[str, tuple[int, int]], shapes: Mapping[str, Shape]
    ) -> None:
        """`reaches` has the rows and columns from the first tap to the last, for each layer."""
        self._shapes = shapes
        self._parents: dict[str, str] = {}
        pads: dict[str, tuple[int, int]] = {}
        least: dict[str, int] = {}
        for layer in layers:
            reach = reaches[layer.name]
            if layer.stride == (1, 1):
                self._join(layer.source, layer.name)
                pads[layer.source] = _most(pads.get(layer.source, (0, 0)), layer.padding)
            else:
                least[layer.name] = shapes[layer.name][3] + reach[1] // layer.stride[1]
            if layer.residual is not None:
                self._join(layer.residual, layer.name)
        self._pads: dict[str, tuple[int, int]] = {}
        for name, pad in pads.items():
            family = self._family(name)
            self._pads[family] = _most(self._pads.get(family, (0, 0)), pad)
        self._pitch: dict[str, int] = {}
        for name in {*self._parents, *least}:
            family = self._family(name)
            width = max(shapes[name][3] + self._pads.get(family, (0, 0))[1], least.get(name, 0))
            self._pitch[family] = max(self._pitch.get(family, 0), width)

    def of(self, name: str) -> Geometry:
        """The geometry of a value."""
        images, channels, height, width = self._shapes[name]
        family = self._family(name)
        pad_y, pad_x = self._pads.get(family, (0, 0))
        pitch = max(self._pitch.get(family, 0), width + pad_x)
        return Geometry(images, channels, height, width, pad_y, pad_x, pitch, lanes_for(images))

    def _family(self, name: str) -> str:
        while self._parents.get(name, name) != name:
            name = self._parents[name]
        return name

    def _join(self, one: str, other: str) -> None:
        for name in (one, other):
            self._parents.setdefault(name, name)
        self._parents[self._family(one)] = self._family(other)


def _most(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), max(one[1], other[1])
