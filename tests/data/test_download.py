import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from pof.data import download as download_module
from pof.data.download import checksum_of, download
from pof.errors import PofError

CONTENT = bytes(range(256)) * 4000


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def test_a_good_file_arrives(site: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.files["a.bin"] = CONTENT
    download(site.url("a.bin"), tmp_path / "here.bin", md5(CONTENT))
    assert (tmp_path / "here.bin").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["here.bin"]
    assert capsys.readouterr().err == "downloading a.bin (1.0 MB) from 127.0.0.1\n"
    assert checksum_of(tmp_path / "here.bin", "sha256") == f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def test_a_terminal_gets_a_bar(
    site: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    site.files["a.bin"] = CONTENT
    download(site.url("a.bin"), tmp_path / "a.bin", md5(CONTENT))
    shown = capsys.readouterr().err
    assert "a.bin" in shown
    assert "MB" in shown
    assert "downloading" not in shown


def refused(url: str, folder: Path) -> str:
    """The message of a download that must fail and must leave nothing behind."""
    with pytest.raises(PofError) as caught:
        download(url, folder / "a.bin", md5(CONTENT))
    assert list(folder.iterdir()) == []
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_wrong_checksum(site: Any, tmp_path: Path) -> None:
    site.files["a.bin"] = CONTENT[:-1] + b"x"
    message = refused(site.url("a.bin"), tmp_path)
    assert site.url("a.bin") in message
    assert md5(CONTENT) in message


def test_a_file_that_is_not_there(site: Any, tmp_path: Path) -> None:
    assert refused(site.url("a.bin"), tmp_path) == f"{site.url('a.bin')} answers 404 Not Found"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # requests leaves the socket open
def test_a_truncated_file(site: Any, tmp_path: Path) -> None:
    site.files["a.bin"] = CONTENT[:1000]
    site.announced["a.bin"] = len(CONTENT)
    assert "broke off" in refused(site.url("a.bin"), tmp_path)


def test_a_file_that_gets_stuck(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "SECONDS", 0.3)
    site.files["a.bin"] = CONTENT
    site.stuck.add("a.bin")
    assert "broke off: timed out" in refused(site.url("a.bin"), tmp_path)


def test_a_host_that_never_answers(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "SECONDS", 0.3)
    site.mute.add("a.bin")
    start = time.monotonic()
    message = refused(site.url("a.bin"), tmp_path)
    assert time.monotonic() - start < 5
    assert message.startswith("127.0.0.1 ")


def test_a_look_up_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_module, "SECONDS", 0.2)
    monkeypatch.setattr(download_module, "getaddrinfo", lambda *_: time.sleep(1))
    assert refused("http://example.invalid/a.bin", tmp_path) == "example.invalid does not answer within 0.2 s"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a.bin", "http://no-such-host.invalid/a.bin"])
def test_a_host_that_is_not_there_fails_quickly(url: str, tmp_path: Path) -> None:
    start = time.monotonic()
    assert "cannot be reached" in refused(url, tmp_path)
    assert time.monotonic() - start <= 10


def test_an_old_file_stays_when_the_new_one_is_bad(site: Any, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"old")
    with pytest.raises(PofError):
        download(site.url("a.bin"), tmp_path / "a.bin", md5(CONTENT))
    assert (tmp_path / "a.bin").read_bytes() == b"old"


def test_a_folder_that_cannot_be_written(site: Any, tmp_path: Path) -> None:
    site.files["a.bin"] = CONTENT
    with pytest.raises(FileNotFoundError):
        download(site.url("a.bin"), tmp_path / "no" / "a.bin", md5(CONTENT))
