"""The folder of a run: made when the run begins, and one process's own while it goes on."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pof.errors import PofError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


class BusyError(PofError):
    """Another process is in the folder of a run."""


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Make the folder and keep other processes that ask for it out; remove what a killed one left half-written.

    Raises:
        PofError: it cannot be made.
        BusyError: another process is in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise PofError(f"cannot make the folder {str(folder)!r}: {error.strerror or error}") from None
    with lock:
        if sys.platform != "win32":
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BusyError(f"another process is training in {str(folder)!r}: choose another --out") from None
        for left in folder.glob(".*.tmp"):
            left.unlink(missing_ok=True)
        yield


def is_free(folder: Path) -> bool:
    """Whether no other process is in the folder."""
    if sys.platform == "win32" or not (folder / LOCK).exists():
        return True
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
