import hashlib
import multiprocessing
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pof.data.dataset_cache import DatasetSource, data_home, kept_or_downloaded, obtain
from pof.errors import PofError

A, B = b"first file", b"second file"
BY_HAND = "put a and b into {folder}"


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


FILES = {"a": md5(A), "b": md5(B)}


def gives(**files: bytes) -> DatasetSource:
    def source(folder: Path, incoming: Path) -> None:
        for name, content in files.items():
            (incoming / name).write_bytes(content)

    return source


def fails(message: str, kind: type[Exception] = PofError) -> DatasetSource:
    def source(folder: Path, incoming: Path) -> None:
        (incoming / "a").write_bytes(A)
        raise kind(message)

    return source


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_place_of_datasets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POF_DATA", str(tmp_path))
    assert data_home() == tmp_path
    monkeypatch.setenv("POF_DATA", "~/elsewhere")
    assert data_home() == Path.home() / "elsewhere"
    monkeypatch.delenv("POF_DATA")
    assert data_home() == Path.home() / ".cache" / "pof"


def test_what_the_cache_holds_asks_no_source(home: Path) -> None:
    (home / "set").mkdir(parents=True)
    (home / "set" / "a").write_bytes(A)
    (home / "set" / "b").write_bytes(B)
    assert obtain("set", FILES, {}, BY_HAND) == home / "set"
    assert names(home / "set") == {"a", "b"}


def test_the_first_source_that_can_gives_the_files(home: Path) -> None:
    sources = {
        "one": fails("no net"),
        "two": fails("no disk", OSError),
        "three": gives(a=A, b=B, extra=b""),
        "four": fails("not asked"),
    }
    folder = obtain("set", FILES, sources, BY_HAND)
    assert (folder / "a").read_bytes() == A
    assert (folder / "b").read_bytes() == B
    assert names(folder) == {"a", "b", ".lock"}


def test_one_message_says_what_failed_and_what_to_do(home: Path) -> None:
    sources = {"one": fails("no net"), "two": gives(a=A, b=b"wrong"), "three": gives(a=A)}
    with pytest.raises(PofError) as caught:
        obtain("set", FILES, sources, BY_HAND)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("set cannot be obtained (cache: ")
    assert "one: no net; two: " in message
    assert f"has checksum {md5(b'wrong')}, not {md5(B)}" in message
    assert message.endswith(f"): put a and b into {home / 'set'}")
    assert names(home / "set") == {".lock"}


def test_a_damaged_file_is_fetched_again(home: Path) -> None:
    obtain("set", FILES, {"one": gives(a=A, b=B)}, BY_HAND)
    (home / "set" / "b").write_bytes(B[:-1])
    obtain("set", FILES, {"one": gives(a=A, b=B)}, BY_HAND)
    assert (home / "set" / "b").read_bytes() == B


def test_a_cache_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("POF_DATA", str(tmp_path / "file"))
    with pytest.raises(PofError, match=r"cannot be written: .*; set POF_DATA"):
        obtain("set", FILES, {"one": gives(a=A, b=B)}, BY_HAND)


def test_an_archive_put_there_by_hand_is_not_downloaded(site: Any, tmp_path: Path) -> None:
    folder, incoming = tmp_path / "folder", tmp_path / "incoming"
    folder.mkdir()
    incoming.mkdir()
    site.files["a"] = A
    assert kept_or_downloaded(site.url("a"), md5(A), folder, incoming) == incoming / "a"
    (folder / "a").write_bytes(A)
    assert kept_or_downloaded(site.url("a"), md5(A), folder, incoming) == folder / "a"
    assert site.asked == ["a"]
    (folder / "a").write_bytes(B)
    assert kept_or_downloaded(site.url("a"), md5(A), folder, incoming) == incoming / "a", "a damaged one is"
    site.files.clear()
    with pytest.raises(PofError, match=r"folder/a has checksum .* and .* answers 404"):
        kept_or_downloaded(site.url("a"), md5(A), folder, incoming)


SCRIPT = """
import sys
from pof.data.dataset_cache import kept_or_downloaded, obtain
url, checksum = sys.argv[1:]
obtain("set", {"a": checksum}, {"site": lambda *folders: kept_or_downloaded(url, checksum, *folders)}, "")
"""


def test_kill_in_the_middle_leaves_no_half_file(site: Any, home: Path) -> None:
    content = bytes(1 << 20)
    site.files["a"] = content
    site.stuck.add("a")
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, site.url("a"), md5(content)], stderr=subprocess.DEVNULL)
    try:
        limit = time.monotonic() + 60
        while not any(part.stat().st_size for part in (home / "set").glob(".incoming/*")):
            assert process.poll() is None
            assert time.monotonic() < limit
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert names(home / "set") == {".incoming", ".lock"}
    site.stuck.clear()
    sources: dict[str, DatasetSource] = {
        "site": lambda folder, incoming: void(kept_or_downloaded(site.url("a"), md5(content), folder, incoming))
    }
    folder = obtain("set", {"a": md5(content)}, sources, BY_HAND)
    assert (folder / "a").read_bytes() == content
    assert names(folder) == {"a", ".lock"}, "and what the killed process left is gone"


def void(_: object) -> None:
    pass


def slowly(folder: Path, incoming: Path) -> None:
    with (folder / "calls").open("a") as calls:
        calls.write("x")
    time.sleep(0.3)
    gives(a=A, b=B)(folder, incoming)


def obtain_slowly() -> None:
    obtain("set", FILES, {"slow": slowly}, BY_HAND)


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_of_processes_that_ask_at_once_one_fetches(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=obtain_slowly) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (home / "set" / "calls").read_text() == "x"
