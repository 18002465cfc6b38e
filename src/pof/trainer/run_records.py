"""The append-only record of a run: `records.jsonl`, one JSON object per line."""

import json
from pathlib import Path
from typing import Any

from pof.errors import PofError


class Records:
    """Writes and reads the record of one run. A line cut off by a kill is not read, and the next start removes it."""

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
        """Return all complete lines: the last one may be cut off, or another process may be writing it."""
        try:
            text = self._path.read_text()
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise PofError(f"cannot read {str(self._path)!r}: {getattr(error, 'strerror', None) or error}") from None
        found = []
        for number, line in enumerate(text[: text.rfind("\n") + 1].splitlines(), start=1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or "kind" not in record:
                raise PofError(f"line {number} of {str(self._path)!r} is not a record: restore or delete the file")
            found.append(record)
        return found

    def mend(self) -> None:
        """Remove an incomplete last line, which a kill left behind."""
        try:
            data = self._path.read_bytes()
            whole = data[: data.rfind(b"\n") + 1]
            if whole != data:
                with self._path.open("rb+") as file:
                    file.truncate(len(whole))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise PofError(f"cannot read {str(self._path)!r}: {error.strerror or error}") from None

    def origin(self) -> dict[str, Any] | None:
        """Return the line that says what made the run: recipe, hash, versions; None if nothing is recorded yet."""
        made = next((record for record in self.read() if record["kind"] in ("start", "resume")), None)
        if made is not None and not {"recipe", "recipe_hash"} <= made.keys():
            raise PofError(f"{str(self._path)!r} does not name its recipe: restore or delete the file")
        return made

    def hashes(self) -> set[str]:
        """Return the hashes of the recipe: one, and another if a newer version with more settings resumed the run."""
        return {record["recipe_hash"] for record in self.read() if "recipe_hash" in record}

    def last(self, kind: str) -> dict[str, Any] | None:
        """Return the last line of that kind; None if there is none."""
        return next((record for record in reversed(self.read()) if record["kind"] == kind), None)
