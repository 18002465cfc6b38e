import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest

from pof.data.archives import unpack_gzip, unpack_tar
from pof.errors import PofError


def tar_of(path: Path, *members: tuple[str, bytes | None]) -> Path:
    """A .tar.gz; a member without content is a link to /etc/passwd."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


def test_only_what_was_asked_for_is_written(tmp_path: Path, into: Path) -> None:
    archive = tar_of(
        tmp_path / "x.tar.gz",
        ("../escaped", b"bad"),
        (str(tmp_path / "absolute"), b"bad"),
        ("folder/other", b"bad"),
        ("folder/a", b"good"),
        ("folder/a", b"a second one of that name"),
        ("folder/b", b""),
    )
    unpack_tar(archive, {"folder/a": "A", "folder/b": "B"}, into)
    assert {path.name: path.read_bytes() for path in into.iterdir()} == {"A": b"good", "B": b""}
    assert {path.name for path in tmp_path.iterdir()} == {"x.tar.gz", "into"}


def test_a_link_in_place_of_a_file_is_no_file(tmp_path: Path, into: Path) -> None:
    archive = tar_of(tmp_path / "x.tar.gz", ("a", None))
    with pytest.raises(PofError, match=r"x.tar.gz has no a, b"):
        unpack_tar(archive, {"a": "a", "b": "b"}, into)
    assert list(into.iterdir()) == []


@pytest.mark.parametrize("keep", [0, 5, 30, 10_000])
def test_a_broken_archive(keep: int, tmp_path: Path, into: Path) -> None:
    content = os.urandom(20_000)
    archive = tar_of(tmp_path / "x.tar.gz", ("a", content))
    archive.write_bytes(archive.read_bytes()[:keep])
    with pytest.raises(PofError, match=r"x.tar.gz"):
        unpack_tar(archive, {"a": "a"}, into)
    (tmp_path / "x.gz").write_bytes(gzip.compress(content)[:keep])
    if keep:
        with pytest.raises(PofError, match=r"x.gz is not a whole .gz file"):
            unpack_gzip(tmp_path / "x.gz", into / "b")


def test_a_text_is_no_archive(tmp_path: Path, into: Path) -> None:
    (tmp_path / "x").write_text("<html>not found</html>")
    with pytest.raises(PofError, match=r"not a whole .tar.gz archive"):
        unpack_tar(tmp_path / "x", {"a": "a"}, into)
    with pytest.raises(PofError, match=r"not a whole .gz file"):
        unpack_gzip(tmp_path / "x", into / "a")


def test_gzip(tmp_path: Path, into: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"content"))
    unpack_gzip(tmp_path / "x.gz", into / "x")
    assert (into / "x").read_bytes() == b"content"
