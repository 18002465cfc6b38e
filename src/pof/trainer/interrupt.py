"""Ctrl-C during a run."""

import signal
import threading
from types import FrameType


class Interrupt:
    """Turns the first SIGINT into a flag, so that a step is never cut in two; a second one stops at once."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> "Interrupt":
        # Only the main thread may handle signals.
        self._hears = threading.current_thread() is threading.main_thread()
        if self._hears:
            self._former = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._hears:
            signal.signal(signal.SIGINT, self._former)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
