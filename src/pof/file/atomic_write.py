"""Write files whole or not at all."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pof.errors import PofError
from pof.file.locations import is_remote, local, send, suffix_of


def check_target(path: str | Path, endings: tuple[str, ...]) -> str | Path:
    """Refuse a path that cannot be written to, or has another ending, before any work is done for it."""
    if suffix_of(path) not in endings:
        raise PofError(f"cannot write {str(path)!r}: its name must end in {' or '.join(endings)}")
    if is_remote(path):
        return path
    target = Path(local(path))
    if target.is_dir() or not target.parent.is_dir() or not os.access(target.parent, os.W_OK):
        raise PofError(f"cannot write {str(path)!r}: name a file in a folder that exists and can be written to")
    return target


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary name beside `path` to write to; after the block, that file becomes `path`, safely on disk.

    If the block fails, `path` keeps its content and the temporary file is deleted. A URL is written after the block.

    Raises:
        PofError: the block or the renaming raised an OSError, such as for a full disk or a read-only folder.
    """
    if is_remote(path):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / f"file{suffix_of(path)}"
            yield temporary
            send(temporary, str(path))
        return
    target = Path(local(path))
    if not target.name:
        raise PofError(f"cannot write {str(path)!r}: name a file")
    # Each writer has its own name: other threads, and other machines, may share the folder.
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        # Give the file the permissions of a new file here, not those that the block sets.
        temporary.touch()
        permissions = temporary.stat().st_mode
        temporary.unlink()
        yield temporary
        temporary.chmod(permissions)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise PofError(f"cannot write {str(target)!r}: {_reason(error)}; what was there before is kept") from None
    finally:
        with suppress(OSError):  # the name may be too long to exist
            temporary.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
