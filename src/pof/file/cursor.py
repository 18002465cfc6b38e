"""Read a stream piece by piece."""

from pof.errors import PofFileError
from pof.file.streams import Bytes


class Cursor:
    """Reads a stream piece by piece."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._position = 0

    def take(self, count: int) -> Bytes:
        """The next `count` bytes."""
        end = self._position + count
        if end > len(self._data):
            raise PofFileError("a stream is too short")
        found = self._data[self._position : end]
        self._position = end
        return found

    def left(self) -> Bytes:
        """The bytes that have not been taken yet."""
        return self._data[self._position :]

    def end(self) -> None:
        """Raise an error if any bytes are left."""
        if self._position != len(self._data):
            raise PofFileError("a stream is too long")
