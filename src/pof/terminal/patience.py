"""Say what is going on, but only where it takes long."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def telling_after(seconds: float, line: str) -> Iterator[None]:
    """Print `line`, unless it is empty, on stderr if what is inside takes longer than so many seconds."""
    if not line:
        yield
        return
    timer = threading.Timer(seconds, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
