"""Silence what torch says about an export that may fail: warnings, and pages of graph in its logs."""

import logging
import threading
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.Lock()
_THREADS: Counter[int] = Counter()
"""The threads that are inside of `quietly`, each with how often."""
_CAUGHT: list["warnings.catch_warnings[None]"] = []


@contextmanager
def quietly() -> Iterator[None]:
    """Silence torch's warnings and the logs of this thread; the last thread to leave turns warnings on again."""
    thread = threading.get_ident()
    with _LOCK:
        if not _THREADS:
            # Warnings are off for the whole process: two threads that each restored them could leave them off.
            _CAUGHT.append(warnings.catch_warnings())
            _CAUGHT[0].__enter__()
            warnings.simplefilter("ignore")
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
                _CAUGHT.pop().__exit__(None, None, None)


def _keeps(record: logging.LogRecord) -> bool:
    """Whether a record is shown: not if it is torch's, of a thread that exports."""
    return record.thread not in _THREADS or not record.name.startswith(("torch", "onnx"))


def _handlers() -> list[logging.Handler]:
    """All handlers that may get a record of torch's loggers."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    found = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    return [*found, *([logging.lastResort] if logging.lastResort is not None else [])]
