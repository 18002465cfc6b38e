"""English sentences that are on every machine: those of the docstrings in Python's standard library."""

import ast
import random
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests"})
WORDS = range(5, 41)
PLAIN = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()/-]*\.")
"""A sentence, and neither code nor a list."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def library_files() -> list[Path]:
    """The files of the standard library that is running, without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    return sorted(file for file in root.rglob("*.py") if LEFT_OUT.isdisjoint(file.relative_to(root).parts))


def docstring_sentences(files: Iterable[Path], seed: int = 0) -> list[str]:
    """Each sentence of the docstrings in `files` once, in an order that only they and `seed` decide."""
    found = sorted({sentence for file in files for text in _docstrings(file) for sentence in _sentences(text)})
    random.Random(seed).shuffle(found)
    return found


def _docstrings(file: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old code has invalid escapes
            tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # a template, or a sample of wrong code
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield text


def _sentences(text: str) -> Iterator[str]:
    for paragraph in text.split("\n\n"):
        if ">>>" not in paragraph:
            for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                if len(sentence.split()) in WORDS and PLAIN.fullmatch(sentence):
                    yield sentence
