"""What errors and warnings say: one line of at most 200 characters, with another library's text behind it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pof
from pof.errors import LONGEST, LONGEST_REASON, PlanError, first_line, shortened, warn

SOURCES = sorted(Path(pof.__file__).parent.rglob("*.py"))
MOST = 200
PLACEHOLDER = 20
"""How many characters a value takes in a message, on average."""


def messages(tree: ast.AST) -> Iterator[tuple[int, ast.expr]]:
    """The line and the text of every error and warning that is made."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", "")
        if name.endswith("Error") or name == "warn":
            yield node.lineno, node.args[0]


def length(text: ast.expr) -> int:
    """The characters of a message, with an estimate for each value in it."""
    if isinstance(text, ast.Constant):
        return len(str(text.value))
    if isinstance(text, ast.JoinedStr):
        return sum(map(length, text.values))
    if isinstance(text, ast.BinOp):
        return length(text.left) + length(text.right)
    if isinstance(text, ast.IfExp):
        return max(length(text.body), length(text.orelse))
    quoted = any(getattr(part, "id", "") == "first_line" for part in ast.walk(text))
    return LONGEST_REASON if quoted else PLACEHOLDER


def test_no_message_is_long() -> None:
    found = [(path, line, text) for path in SOURCES for line, text in messages(ast.parse(path.read_text()))]
    assert len(found) > 100
    long = [f"{path.name}:{line} {ast.unparse(text)}" for path, line, text in found if length(text) > MOST]
    assert not long, "\n".join(long)


def test_errors_of_other_libraries_are_cut() -> None:
    handlers = [
        (path, node)
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ExceptHandler) and node.name and "Pof" not in ast.unparse(node.type or node)
    ]
    whole = [
        f"{path.name}:{line} {ast.unparse(text)}"
        for path, handler in handlers
        for line, text in messages(handler)
        if f"{{{handler.name}}}" in ast.unparse(text) or f"str({handler.name})" in ast.unparse(text)
    ]
    assert not whole, "quote these with first_line:\n" + "\n".join(whole)


def test_first_lines() -> None:
    assert first_line(ValueError("short")) == "short"
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    assert len(first_line(ValueError("long " * 100))) == LONGEST_REASON


def test_long_messages_lose_their_middle() -> None:
    long = f"sparsities={list(range(300))} must map names or globs to sparsities, such as {{'fc': 0.5}}"
    for message in (str(PlanError(long)), shortened(long)):
        assert LONGEST - 20 < len(message) <= LONGEST
        assert message.startswith("sparsities=[0, 1, 2")
        assert message.endswith("such as {'fc': 0.5}")
    assert str(PlanError("short")) == shortened("short") == "short"
    assert str(PlanError()) == ""


def test_warnings_are_short_and_name_the_users_line() -> None:
    names = "a_module_with_a_long_name." * 12
    with pytest.warns(UserWarning, match="exclude it") as caught:
        warn(f"{names} is not pruned: exclude it")
    assert len(str(caught[0].message)) <= LONGEST
    assert caught[0].filename == __file__
