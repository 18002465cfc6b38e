"""The folder of a run: made when the run starts, and locked by one process while it lasts."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pof.errors import PofError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


class BusyError(PofError):
    """Another process is using the folder of a run."""


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Make the folder and lock it; remove files that a killed process left half-written.

    Raises:
        PofError: the folder cannot be made.
        BusyError: another process has locked it.
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
    """Whether no other process is using the folder."""
    if sys.platform == "win32" or not (folder / LOCK).exists():
        return True
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
