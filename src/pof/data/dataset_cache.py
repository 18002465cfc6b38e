"""Where datasets are kept, and how they get there: from the first source that works."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pof.data.download import algorithm_of, checksum_of, download
from pof.errors import PofError, first_line

if sys.platform != "win32":
    import fcntl

DatasetSource = Callable[[Path, Path], None]
"""A function of the dataset's folder and an empty folder in it that puts all files there, or raises PofError.

It need not download files that the user has put into the dataset's folder by hand.
"""


def data_home() -> Path:
    """The folder of all datasets: `$POF_DATA`, else `~/.cache/pof`."""
    return Path(os.environ.get("POF_DATA") or "~/.cache/pof").expanduser()


def obtain(name: str, files: Mapping[str, str], sources: Mapping[str, DatasetSource], by_hand: str) -> Path:
    """Return the folder that holds `files`, after fetching them if needed.

    Files appear in the folder only once they are complete and checked. Processes that ask at the same time wait for the
    one that fetches. The next process removes what a killed one left behind.

    Args:
        name: the name of the dataset, and of its folder in `data_home()`.
        files: the checksum of each file, such as `md5:0123...`, by its name. They are checked on every call.
        sources: the sources in the order to try them, by a name for messages.
        by_hand: what the user can do if all sources fail; `{folder}` stands for the folder.

    Raises:
        PofError: no source has the files, or the folder cannot be written.
    """
    folder = data_home() / name
    if _fault(folder, files) is None:
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one(folder):
            reasons = _fetch(folder, files, sources)
    except OSError as error:
        raise PofError(f"{folder} cannot be written: {first_line(error)}; set POF_DATA to a writable folder") from error
    if reasons:
        raise PofError(f"{name} cannot be obtained ({'; '.join(reasons)}): {by_hand.format(folder=folder)}")
    return folder


def kept_or_downloaded(url: str, checksum: str, folder: Path, incoming: Path) -> Path:
    """The file at `url`: from `folder` if the user has put a good one there, else downloaded to `incoming`."""
    name = url.rpartition("/")[2]
    fault = _fault(folder, {name: checksum})
    if fault is None:
        return folder / name
    try:
        download(url, incoming / name, checksum)
    except PofError as error:
        raise PofError(f"{fault}, and {error}" if (folder / name).exists() else str(error)) from error
    return incoming / name


def _fetch(folder: Path, files: Mapping[str, str], sources: Mapping[str, DatasetSource]) -> list[str]:
    """Fetch the files, and return why that failed; the list is empty if they are there."""
    fault = _fault(folder, files)
    if fault is None:
        return []
    reasons = [f"cache: {fault}"]
    for title, source in sources.items():
        with _empty_folder(folder / ".incoming") as incoming:
            try:
                source(folder, incoming)
                fault = _fault(incoming, files)
            except (OSError, ValueError) as error:
                fault = str(error)
            if fault is None:
                for file in files:
                    (incoming / file).replace(folder / file)
                return []
            reasons.append(f"{title}: {fault}")
    return reasons


def _fault(folder: Path, files: Mapping[str, str]) -> str | None:
    """What is wrong with the first bad file; None if all are good."""
    for name, checksum in files.items():
        try:
            found = checksum_of(folder / name, algorithm_of(checksum))
        except FileNotFoundError:
            return f"{folder / name} is missing"
        except OSError as error:
            return f"{folder / name} cannot be read: {error.strerror}"
        if found != checksum:
            return f"{folder / name} has checksum {found}, not {checksum}"
    return None


@contextmanager
def _empty_folder(path: Path) -> Iterator[Path]:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Let only one process on this machine fetch a dataset; the lock is released even if its holder is killed."""
    with (folder / ".lock").open("w") as file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
