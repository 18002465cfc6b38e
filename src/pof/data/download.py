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
"""How long a host may take to be found, to answer, and later to send the next piece."""


def checksum_of(path: Path, algorithm: str) -> str:
    """The checksum of a file in our notation, `algorithm:hex`."""
    return f"{algorithm}:{_pooch().file_hash(str(path), alg=algorithm)}"


def algorithm_of(checksum: str) -> str:
    """Return "md5" for "md5:0123"."""
    return checksum.partition(":")[0]


def download(url: str, to: Path, checksum: str) -> None:
    """Download `url` to the file `to`, which exists afterwards if, and only if, it is whole and has the checksum.

    Args:
        url: of http or https.
        to: where to; a temporary file beside it holds what has come so far.
        checksum: `md5:0123...` or another algorithm of hashlib.

    Raises:
        PofError: the host cannot be reached or takes over 10 s to answer, or what it sends is not the file.
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
            raise PofError(f"{url} answers {error.response.status_code} {error.response.reason}") from error
        except exceptions.ConnectTimeout as error:
            raise PofError(f"{host} does not answer within {SECONDS:g} s") from error
        except exceptions.ChunkedEncodingError as error:
            raise PofError(f"{url} broke off: {_reason(error)}") from error
        except (exceptions.ConnectionError, exceptions.Timeout) as error:
            # requests has one error for both; only one of them names the time.
            broke_off = "Read timed out" in str(error)
            what = f"{url} broke off: timed out" if broke_off and fetch.progressbar.total else None
            late = f"{host} does not answer within {SECONDS:g} s" if broke_off else None
            raise PofError(what or late or f"{host} cannot be reached: {_reason(error)}") from error
        except ValueError as error:
            found = f"{algorithm_of(checksum)}:{str(error).rpartition('Downloaded hash: ')[2].rstrip('.') or '?'}"
            raise PofError(f"{url} has changed or is damaged: its checksum is not {checksum} ({found})") from error


class _Progress:
    """What pooch tells of a download, as a bar on a terminal and as one line elsewhere."""

    def __init__(self, bars: Bars, url: str) -> None:
        self._bars, self._name, self._host = bars, url.rpartition("/")[2], urlsplit(url).hostname
        self._total, self._done = 0, 0

    @property
    def total(self) -> int:
        """Bytes in all; 0 if the host does not say."""
        return self._total

    @total.setter
    def total(self, total: int) -> None:
        self._total = total
        if not self._bars.live:
            amount = f" ({total / 1e6:.1f} MB)" if total else ""
            print(f"downloading {self._name}{amount} from {self._host}", file=sys.stderr)

    def update(self, more: int) -> None:
        """So many bytes have come."""
        self._done = min(self._done + more, self._total or self._done + more)
        if self._bars.live:
            amount = f"{self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB from {self._host}"
            self._bars.update(self._name, self._done, self._total or self._done, amount)

    def reset(self) -> None:
        """Begin anew."""
        self._done = 0

    def close(self) -> None:
        """Nothing to do: the bars are closed by whoever opened them."""


def _look_up(host: str) -> None:
    """Give up a look-up that hangs, which no limit of a connection counts."""
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
    """The innermost cause, which says in one line what requests wraps in several."""
    inner: BaseException = error
    while isinstance(inner, BaseException):
        last = inner
        inner = next((a for a in inner.args if isinstance(a, BaseException)), getattr(inner, "reason", None))  # type: ignore[assignment]
    return (str(last) or type(last).__name__).splitlines()[0]
