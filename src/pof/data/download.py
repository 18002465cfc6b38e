"""Download a file: to a temporary name first, within a time limit, with a progress bar and a checksum."""

import hashlib
import queue
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from pof.errors import PofError

SECONDS = 10.0
"""How long a host may take to answer, and later to send the next piece."""
PIECE = 1 << 18


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


def checksum_of(path: Path, algorithm: str) -> str:
    """The checksum of a file in our notation, `algorithm:hex`."""
    digest = _hash(algorithm)
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return f"{algorithm}:{digest.hexdigest()}"


def algorithm_of(checksum: str) -> str:
    """Return "md5" for "md5:0123"."""
    return checksum.partition(":")[0]


def download(url: str, to: Path, checksum: str) -> None:
    """Download `url` to the file `to`, which exists afterwards if, and only if, it is whole and has the checksum.

    Args:
        url: of http or https.
        to: where to; a file `NAME.part` beside it holds what has come so far.
        checksum: `md5:0123...` or another algorithm of hashlib.

    Raises:
        PofError: the host cannot be reached or takes over 10 s to answer, or what it sends is not the file.
        OSError: the file cannot be written.
    """
    part = to.with_name(to.name + ".part")
    try:
        found = f"{algorithm_of(checksum)}:{_receive(url, part, _hash(algorithm_of(checksum)))}"
        if found != checksum:
            raise PofError(f"{url} has changed or is damaged: its checksum is {found}, not {checksum}")
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def _hash(algorithm: str) -> _Hash:
    return hashlib.new(algorithm, usedforsecurity=False)


def _receive(url: str, to: Path, digest: _Hash) -> str:
    with _open(url) as response, to.open("wb") as file:
        size = int(response.headers.get("Content-Length") or 0)
        received = 0
        with _bar(url, size) as bar:
            for piece in _pieces(url, response):
                digest.update(piece)
                file.write(piece)
                received += len(piece)
                bar.show(received)
    if size and received != size:
        raise PofError(f"{url} broke off after {received:,} of {size:,} bytes")
    return digest.hexdigest()


def _pieces(url: str, response: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            piece = response.read(PIECE)
        except (OSError, HTTPException) as error:
            raise PofError(f"{url} broke off: {error or type(error).__name__}") from error
        if not piece:
            return
        yield piece


def _open(url: str) -> HTTPResponse:
    # In a thread, because a socket's own limit counts neither the look-up of the name nor each further address.
    answers: queue.SimpleQueue[HTTPResponse | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            request = urllib.request.Request(url, headers={"User-Agent": "pof"})
            answers.put(urllib.request.urlopen(request, timeout=SECONDS))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=SECONDS)
    except queue.Empty:
        raise PofError(f"{urlsplit(url).hostname} does not answer within {SECONDS:g} s") from None
    if isinstance(answer, HTTPError):
        answer.close()
        raise PofError(f"{url} answers {answer.code} {answer.reason}")
    if isinstance(answer, Exception):
        reason = answer.reason if isinstance(answer, URLError) else answer
        raise PofError(f"{urlsplit(url).hostname} cannot be reached: {reason}") from answer
    return answer


class _Bar:
    """Shows how far a download is: a bar on a terminal, nothing elsewhere."""

    def __init__(self, name: str, size: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn

        console = Console(stderr=True)
        self.live = console.is_terminal
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            SpeedColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=console, disable=not self.live)
        self._task = self.progress.add_task(name, total=size or None)

    def show(self, received: int) -> None:
        self.progress.update(self._task, completed=received)


@contextmanager
def _bar(url: str, size: int) -> Iterator[_Bar]:
    name, host = url.rpartition("/")[2], urlsplit(url).hostname
    bar = _Bar(name, size)
    if not bar.live:
        amount = f" ({size / 1e6:.1f} MB)" if size else ""
        print(f"downloading {name}{amount} from {host}", file=sys.stderr)
    with bar.progress:
        yield bar
