"""The compiled core; everything else is in pyproject.toml. Without a compiler pof is built and works without it."""

from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(str(path) for path in Path("src/pof/core").glob("*.c"))

setup(
    ext_modules=[
        Extension(
            "pof.core._compiled", SOURCES, optional=True, extra_compile_args=["-O3", "-g0", "-fvisibility=hidden"]
        )
    ]
)
