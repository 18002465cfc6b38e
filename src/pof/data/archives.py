"""Take files out of archives: only those that were asked for, only to the names that were asked for."""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from pof.errors import PofError

_BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


def unpack_tar(archive: Path, members: Mapping[str, str], into: Path) -> None:
    """Write the plain files `members` of a .tar.gz into a folder.

    Nothing else is written, whatever the archive holds: links, absolute names and names with ".." match no member.

    Args:
        archive: the archive.
        members: the name to write for each name in the archive.
        into: the folder.

    Raises:
        PofError: it is no such archive, or a member is not in it.
    """
    missing = dict(members)
    try:
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isreg() and member.name in missing else None
                if content is not None:
                    with content, (into / missing.pop(member.name)).open("wb") as file:
                        shutil.copyfileobj(content, file)
    except _BROKEN as error:
        raise PofError(f"{archive} is no whole .tar.gz archive: {error}") from error
    if missing:
        raise PofError(f"{archive} has no {', '.join(missing)}")


def unpack_gzip(archive: Path, to: Path) -> None:
    """Write what a .gz file holds.

    Raises:
        PofError: it is no such file.
    """
    try:
        with gzip.open(archive) as content, to.open("wb") as file:
            shutil.copyfileobj(content, file)
    except _BROKEN as error:
        raise PofError(f"{archive} is no whole .gz file: {error}") from error
