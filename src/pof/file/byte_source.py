"""Read ranges of bytes from a local file, or from anything that fsspec knows (http, s3, ...)."""

from pathlib import Path
from typing import Protocol

from pof.core.large_buffers import fresh
from pof.errors import PofFileError, first_line
from pof.file.atomic_write import replacing
from pof.file.locations import filesystem, is_remote, local


class ByteSource(Protocol):
    """Bytes that can be read by ranges."""

    name: str

    def read(self, start: int, length: int) -> bytes | memoryview:
        """Up to `length` bytes from `start` on; there are fewer only at the end."""

    def size(self) -> int | None:
        """The number of bytes; None if it cannot be known."""


class LocalSource:
    """A file on this machine."""

    def __init__(self, path: str | Path) -> None:
        self.name = str(path)

    def read(self, start: int, length: int) -> memoryview:
        """Up to `length` bytes from `start` on."""
        room = fresh(min(length, max(self.size() - start, 0))).data
        try:
            with Path(self.name).open("rb", buffering=0) as file:
                file.seek(start)
                found = 0
                # One call may read less than was asked for.
                while more := file.readinto(room[found:]):
                    found += more
                return room[:found]
        except OSError as error:
            raise PofFileError(f"cannot read {self.name!r}: {error.strerror or error}") from None

    def size(self) -> int:
        """The number of bytes."""
        try:
            return Path(self.name).stat().st_size
        except OSError as error:
            raise PofFileError(f"cannot read {self.name!r}: {error.strerror or error}") from None


class RemoteSource:
    """A file that fsspec can reach."""

    def __init__(self, url: str) -> None:
        self.name = url
        self._system, self._path = filesystem(url)
        self._whole: bytes | None = None
        """The whole file, if the server does not support ranges and sent all of it."""

    def read(self, start: int, length: int) -> bytes:
        """Up to `length` bytes from `start` on, in one request for just these."""
        if length == 0:
            return b""
        if self._whole is not None:
            return self._whole[start : start + length]
        try:
            data: bytes = self._system.cat_file(self._path, start=start, end=start + length)
        except Exception as error:  # each backend has its own errors
            raise PofFileError(f"cannot read {self.name!r}: {type(error).__name__}: {first_line(error)}") from None
        if len(data) > length:
            self._whole = data
            return data[start : start + length]
        return data

    def size(self) -> int | None:
        """The number of bytes, if the server says."""
        try:
            found = self._system.size(self._path)
        except Exception as error:  # each backend has its own errors
            raise PofFileError(f"cannot read {self.name!r}: {type(error).__name__}: {first_line(error)}") from None
        return None if found is None else int(found)


def open_source(path: str | Path) -> ByteSource:
    """The source that `path` names."""
    return RemoteSource(str(path)) if is_remote(path) else LocalSource(local(path))


def write_bytes(path: str | Path, data: list[bytes]) -> None:
    """Write a file, whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.writelines(data)
