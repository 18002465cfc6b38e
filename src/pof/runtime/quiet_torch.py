"""Silence what torch says about an export that may fail: warnings, and pages of graph in its logs and on stderr."""

import logging
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO, cast

_LOCK = threading.Lock()
_THREADS: Counter[int] = Counter()
"""The threads that are inside of `quietly`, each with how often."""
_RESTORE = ExitStack()
"""What the last thread to leave puts back: two threads that each did so could leave things off for good."""


@contextmanager
def quietly() -> Iterator[None]:
    """Silence torch's warnings, and what this thread logs for torch and writes to stderr."""
    thread = threading.get_ident()
    with _LOCK:
        if not _THREADS:
            _RESTORE.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            _RESTORE.enter_context(_stderr_of_others())
        _THREADS[thread] += 1
        for handler in _handlers():
            handler.addFilter(_keeps)
    try:
        yield
    finally:
        with _LOCK:
            _THREADS[thread] -= 1
            if not _THREADS[thread]:
                del _THREADS[thread]
            if not _THREADS:
                _RESTORE.close()


@contextmanager
def _stderr_of_others() -> Iterator[None]:
    """Let only other threads write to stderr: torch prints a graph there when its export fails."""
    before, mine = sys.stderr, cast(TextIO, _OthersOnly(sys.stderr))
    sys.stderr = mine
    try:
        yield
    finally:
        if sys.stderr is mine:
            sys.stderr = before


class _OthersOnly:
    """A stream that drops what threads inside of `quietly` write."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, unless this thread is quiet."""
        return len(text) if threading.get_ident() in _THREADS else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _keeps(record: logging.LogRecord) -> bool:
    """Whether a record is shown: not if it is torch's, of a thread that exports."""
    return record.thread not in _THREADS or not record.name.startswith(("torch", "onnx"))


def _handlers() -> list[logging.Handler]:
    """All handlers that may get a record of torch's loggers."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    found = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    return [*found, *([logging.lastResort] if logging.lastResort is not None else [])]
