"""Unpack archives: only the requested files, and only under the requested names."""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from pof.errors import PofError, first_line

_BROKEN = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error)


def unpack_tar(archive: Path, members: Mapping[str, str], into: Path) -> None:
    """Write the plain files `members` of a .tar.gz archive into a folder.

    Nothing else in the archive is written: links, absolute names and names with ".." match no member.

    Args:
        archive: the path of the archive.
        members: for each name in the archive, the name to write it under.
        into: the folder to write to.

    Raises:
        PofError: it is not such an archive, or lacks a member.
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
        raise PofError(f"{archive} is not a whole .tar.gz archive: {first_line(error)}") from error
    if missing:
        raise PofError(f"{archive} has no {', '.join(missing)}")


def unpack_gzip(archive: Path, to: Path) -> None:
    """Unpack a .gz file to the file `to`.

    Raises:
        PofError: it is not such a file.
    """
    try:
        with gzip.open(archive) as content, to.open("wb") as file:
            shutil.copyfileobj(content, file)
    except _BROKEN as error:
        raise PofError(f"{archive} is not a whole .gz file: {first_line(error)}") from error
