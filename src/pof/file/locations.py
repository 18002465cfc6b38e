"""Paths that may be URLs of any kind that fsspec knows (http, s3, hf, ...): open, fetch and send them."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from pof.errors import PofError, first_line


def is_remote(path: str | Path) -> bool:
    """Whether `path` is a remote URL; file:// is local."""
    return isinstance(path, str) and re.match(r"(?!file://)[a-z0-9+]{2,}(::|://)", path, re.IGNORECASE) is not None


def local(path: str | Path) -> str | Path:
    """The path without file://, to be used like any other."""
    return path.removeprefix("file://") if isinstance(path, str) else path


def suffix_of(path: str | Path) -> str:
    """The ending of a path's or a URL's last part, such as ".pof"; a URL's query after "?" does not count."""
    text = str(path)
    return PurePosixPath(text.partition("?")[0]).suffix if is_remote(text) else Path(text).suffix


def filesystem(url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # its message names the package
        raise PofError(f"cannot open {url!r}: {first_line(error)}") from None
    except Exception as error:  # each backend has its own errors
        raise PofError(f"cannot open {url!r}: {type(error).__name__}: {first_line(error)}") from None
    return system, path


@contextmanager
def at_hand(path: str | Path) -> Iterator[Path]:
    """Yield a local path with the same content: `path` itself, or a copy of a URL that is deleted after the block."""
    if not is_remote(path):
        yield Path(local(path))
        return
    system, inner = filesystem(str(path))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / f"file{suffix_of(path)}"
        try:
            system.get_file(inner, str(copy))
        except Exception as error:  # each backend has its own errors
            raise PofError(f"cannot read {str(path)!r}: {type(error).__name__}: {first_line(error)}") from None
        yield copy


def send(file: Path, url: str) -> None:
    """Upload a local file to `url`."""
    system, inner = filesystem(url)
    try:
        system.put_file(str(file), inner)
    except Exception as error:  # each backend has its own errors
        raise PofError(f"cannot write {url!r}: {type(error).__name__}: {first_line(error)}") from None
