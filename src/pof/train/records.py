"""The append-only record of a run: `records.jsonl`, a JSON object a line."""

import json
from pathlib import Path
from typing import Any

from pof.errors import PofError


class Records:
    """Writes and reads the record of one run. A line that a kill cut off is dropped at the next start."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, kind: str, **values: Any) -> None:
        """Add one line."""
        try:
            with self._path.open("a") as file:
                file.write(json.dumps({"kind": kind, **values}) + "\n")
        except OSError as error:
            raise PofError(f"cannot write {str(self._path)!r}: {error.strerror or error}") from None

    def read(self) -> list[dict[str, Any]]:
        """All whole lines."""
        if not self._path.exists():
            return []
        found = []
        for number, line in enumerate(self._path.read_text().splitlines(), start=1):
            try:
                found.append(json.loads(line))
            except ValueError:
                raise PofError(f"line {number} of {str(self._path)!r} is no JSON: restore or delete the file") from None
        return found

    def mend(self) -> None:
        """Take off a last line without its end, which a kill left."""
        if self._path.exists():
            data = self._path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                self._path.write_bytes(whole)

    def last(self, kind: str) -> dict[str, Any] | None:
        """The last line of that kind."""
        return next((record for record in reversed(self.read()) if record["kind"] == kind), None)
