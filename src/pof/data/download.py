"""Download a file with pooch: to a temporary name first, within a time limit, with a progress bar and a checksum."""

import logging
import sys
import threading
from pathlib import Path
from socket import getaddrinfo
from typing import Any
from urllib.parse import urlsplit

from pof.errors import MissingPackageError, PofError
from pof.terminal.progress_bars import Bars

SECONDS = 10.0
"""How long a host may take to be looked up, to answer, and to send each further piece."""


def checksum_of(path: Path, algorithm: str) -> str:
    """The checksum of a file in our notation, `algorithm:hex`."""
    return f"{algorithm}:{_pooch().file_hash(str(path), alg=algorithm)}"


def algorithm_of(checksum: str) -> str:
    """Return "md5" for "md5:0123"."""
    return checksum.partition(":")[0]


def download(url: str, to: Path, checksum: str) -> None:
    """Download `url` to the file `to`, which exists afterwards only if it is complete and has the checksum.

    Args:
        url: an http or https URL.
        to: the file to write; a temporary file beside it holds what has arrived so far.
        checksum: `md5:0123...`, or another algorithm of hashlib.

    Raises:
        PofError: the host cannot be reached, takes over 10 s to answer, or does not send the right file.
        OSError: the file cannot be written.
    """
    pooch = _pooch()
    from requests import exceptions

    if not to.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(to.parent)!r}")
    host = urlsplit(url).hostname
    _look_up(host or "")
    with Bars() as bars:
        fetch = pooch.HTTPDownloader(timeout=SECONDS, progressbar=_Progress(bars, url))
        try:
            pooch.core.stream_download(url, to, checksum, fetch)
        except exceptions.HTTPError as error:
            answer = error.response
            said = "an error" if answer is None else f"{answer.status_code} {answer.reason}"
            raise PofError(f"{url} answers {said}") from error
        except exceptions.ConnectTimeout as error:
            raise PofError(f"{host} does not answer within {SECONDS:g} s") from error
        except exceptions.ChunkedEncodingError as error:
            raise PofError(f"the download of {url} broke off: {_reason(error)}") from error
        except (exceptions.ConnectionError, exceptions.Timeout) as error:
            # requests raises the same error for both; only a timeout says so in its text.
            broke_off = "Read timed out" in str(error)
            what = f"the download of {url} broke off: timed out" if broke_off and fetch.progressbar.total else None
            late = f"{host} does not answer within {SECONDS:g} s" if broke_off else None
            raise PofError(what or late or f"{host} cannot be reached: {_reason(error)}") from error
        except ValueError as error:
            found = f"{algorithm_of(checksum)}:{str(error).rpartition('Downloaded hash: ')[2].rstrip('.') or '?'}"
            raise PofError(f"{url} has changed or is damaged: its checksum is not {checksum} ({found})") from error


class _Progress:
    """Shows a download's progress, as pooch reports it: a bar on a terminal, one line elsewhere."""

    def __init__(self, bars: Bars, url: str) -> None:
        self._bars, self._name, self._host = bars, url.rpartition("/")[2], urlsplit(url).hostname
        self._total, self._done = 0, 0

    @property
    def total(self) -> int:
        """The total number of bytes; 0 if the host does not say."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        if not self._bars.live:
            amount = f" ({total / 1e6:.1f} MB)" if total else ""
            print(f"downloading {self._name}{amount} from {self._host}", file=sys.stderr)

    def update(self, more: int) -> None:
        """Count `more` bytes that have arrived."""
        self._done = min(self._done + more, self._total or self._done + more)
        if self._bars.live:
            amount = f"{self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB from {self._host}"
            self._bars.update(self._name, self._done, self._total or self._done, amount)

    def reset(self) -> None:
        """Start over."""
        self._done = 0

    def close(self) -> None:
        """Do nothing: the bars are closed where they were opened."""


def _look_up(host: str) -> None:
    """Look up a host, and give up if that hangs, as no connection timeout covers it."""
    failed: list[OSError] = []

    def ask() -> None:
        try:
            getaddrinfo(host, None)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        raise PofError(f"{host} does not answer within {SECONDS:g} s")
    if failed:
        raise PofError(f"{host} cannot be reached: {failed[0].strerror or failed[0]}")


def _pooch() -> Any:
    try:
        import pooch
    except ModuleNotFoundError:
        raise MissingPackageError("datasets need pooch: pip install 'pof[data]'", name="pooch") from None
    pooch.get_logger().setLevel(logging.WARNING)
    return pooch


def _reason(error: BaseException) -> str:
    """The innermost cause: one line, which requests wraps in several."""
    inner: BaseException = error
    while isinstance(inner, BaseException):
        last = inner
        inner = next((a for a in inner.args if isinstance(a, BaseException)), getattr(inner, "reason", None))  # type: ignore[assignment]
    return (str(last) or type(last).__name__).splitlines()[0]
