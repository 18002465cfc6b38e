"""The types of numbers that a file can hold, by name."""

ITEM_SIZES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""The number of bytes of each type."""

WIDTHS = (1, 2, 4, 8, 16)
"""All the sizes that occur among these types."""
