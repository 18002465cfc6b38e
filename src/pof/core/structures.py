"""The structures that C and Python share (core/structures.h), and a check that both agree on them."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from typing import Any

from pof.errors import PofError


def _fields(kind: Any, *names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names]


class TapStruct(Structure):
    """A nonzero weight, and the distance in bytes to the value that it multiplies."""

    _fields_ = [("offset", c_int32), ("weight", c_float)]


class ConvStruct(Structure):
    """A sparse convolution for one size of input."""

    _fields_ = [
        *_fields(c_void_p, "taps", "starts", "bias", "tile_in", "tile_out", "tile_vectors"),
        *_fields(c_int64, "channels", "blocks", "tiles", "out_stride", "blocks_outside", "dense"),
        *_fields(c_int64, "rows", "pitch", "first_gap", "gap", "last_gap"),
        *_fields(c_float, "low", "high"),
    ]


class ConvCallStruct(Structure):
    """A call that convolves several images."""

    _fields_ = [
        *_fields(c_void_p, "conv", "source", "residual", "out"),
        *_fields(c_int64, "images", "in_images", "out_images", "count"),
        ("parts", c_void_p),
        *_fields(c_int64, "threads", "plain"),
    ]


class CopyStruct(Structure):
    """A copy of images: from where, to where, and how many."""

    _fields_ = [
        ("from_data", c_void_p),
        *_fields(c_int64, "from_block", "from_lane", "from_channel", "from_row", "from_column"),
        ("to_data", c_void_p),
        *_fields(c_int64, "to_block", "to_channel", "to_phase", "pitch", "lanes", "top", "left"),
        *_fields(c_int64, "row_stride", "column_stride", "images", "channels", "height", "width", "threads"),
    ]


class PoolStruct(Structure):
    """A pool of images."""

    _fields_ = [
        ("planes", CopyStruct),
        *_fields(c_int64, "kernel_height", "kernel_width", "stride_y", "stride_x", "padding_y", "padding_x"),
        *_fields(c_int64, "out_height", "out_width"),
    ]


class WinogradStruct(Structure):
    """A convolution, or the gradient of its weights, by Winograd's algorithm."""

    _fields_ = [
        *_fields(c_void_p, "in", "out_gradient", "weights", "out", "weight_gradients", "scratch"),
        *_fields(c_int64, "images", "height", "width", "in_channels", "out_channels", "parts"),
    ]


class PlacingStruct(Structure):
    """The parts of one tensor's magnitudes, and where they go."""

    _fields_ = [
        *_fields(c_void_p, "plain", "filled"),
        *_fields(c_int64, "groups", "count", "length", "fill_bytes"),
        ("symbols", c_void_p),
        ("planes", c_void_p * 3),
        *_fields(c_void_p, "signs", "fill_signs", "fills", "out"),
        *_fields(c_int32, "size", "base", "signed_planes", "wide"),
    ]


class StepStruct(Structure):
    """One of several steps in one call."""

    _fields_ = _fields(c_void_p, "run", "argument")


SHARED: dict[str, type[Structure]] = {
    "Tap": TapStruct,
    "Conv": ConvStruct,
    "ConvCall": ConvCallStruct,
    "Copy": CopyStruct,
    "Pool": PoolStruct,
    "WinogradCall": WinogradStruct,
    "Placing": PlacingStruct,
    "Step": StepStruct,
}
"""The shared structures, by their names in C."""


class _FieldStruct(Structure):
    _fields_ = [("structure", c_char_p), ("field", c_char_p), ("offset", c_int64), ("size", c_int64)]


def check_structures(library: ctypes.CDLL, path: str) -> None:
    """Refuse a compiled core whose structures differ from those of this version of pof."""
    if not hasattr(library, "pof_structures"):
        raise _other(path, "it does not list its structures")
    library.pof_structures.restype = POINTER(_FieldStruct)
    count = c_int64()
    table = library.pof_structures(ctypes.byref(count))
    theirs = {
        (row.structure.decode(), row.field.decode()): (row.offset, row.size)
        for row in (table[i] for i in range(count.value))
    }
    ours = {(name, ""): (0, ctypes.sizeof(kind)) for name, kind in SHARED.items()}
    for name, kind in SHARED.items():
        for field, *_ in kind._fields_:
            place = getattr(kind, field)
            ours[name, field] = (place.offset, place.size)
    for key in sorted(theirs.keys() | ours.keys()):
        if theirs.get(key) != ours.get(key):
            raise _other(
                path, f"{'.'.join(filter(None, key))} lies at {theirs.get(key)} there, at {ours.get(key)} here"
            )


def _other(path: str, difference: str) -> PofError:
    return PofError(
        f"the compiled core {path!r} is of another version of pof ({difference}): rebuild it with "
        "pip install --force-reinstall --no-cache-dir pof"
    )
