"""Only what a state needs is read: prefixes of a file, ranges over HTTP, anything that fsspec knows."""

import copy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from file_helpers import ENDS, assert_same, at_states
from torch import nn

import pof
from pof.file.byte_source import LocalSource
from tests.small_models import Kinds, bits, randomised


@pytest.fixture(scope="module")
def model() -> nn.Module:
    """Large enough that values outweigh the head."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(32, 48, 3), nn.Linear(200, 100)).eval()


@pytest.fixture(scope="module")
def file(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("partial") / "m.pof"
    pof.save(model, path)
    return path


# --- a prefix of the file -----------------------------------------------------------------------------------------


def expected_at(model: nn.Module, state: pof.State) -> dict[str, torch.Tensor]:
    ends = (state.sparsity, None if state.sparsity == state.recover_from else state.recover_from)
    ((_, found),) = at_states(model, [ends])
    return found


@pytest.mark.parametrize("magnitudes", ["raw", "unit"])
def test_every_whole_chunk_more_gives_a_denser_state(tmp_path: Path, magnitudes: Any) -> None:
    model = randomised(Kinds())
    pof.save(model, whole := tmp_path / "whole.pof", magnitudes=magnitudes)
    data, stages = whole.read_bytes(), pof.open(whole).stages
    kinds = ["base", "kept", "signs", "signs", "magnitudes", "magnitudes", "rest"]
    assert [stage.kind for stage in stages] == kinds
    states = [None, (0.9, 0.9), (0.9, 0.7), (0.9, 0.3), (0.7, 0.3), (0.3, 0.3), (0.0, 0.0)]
    assert [stage.state for stage in stages] == states
    assert stages[-1].cumulative == len(data)
    for number, stage in enumerate(stages):
        (cut := tmp_path / "cut.pof").write_bytes(data[: stage.cumulative])
        into = copy.deepcopy(model)
        with torch.no_grad():
            into.kernel.weight.zero_()
        before = bits(into)
        if number < len(stages) - 1:
            with pytest.raises(
                pof.PofFileError, match=rf"is cut off: {stage.cumulative} of {len(data)} bytes.*partial"
            ):
                pof.open(cut)
            with pytest.raises(pof.PofFileError, match=r"is cut off.*partial=True"):
                pof.load(cut, into=into)
        opened = pof.open(cut, partial=True)
        assert [there.state for there in opened.stages] == states[: number + 1]
        assert opened.size == len(data)
        if stage.state is None:
            with pytest.raises(pof.PofFileError, match="cut off before its first stage ends"):
                pof.load(cut, into=into, partial=True)
            assert bits(into) == before
            continue
        assert opened.densest == stage.state
        assert pof.load(cut, into=into, partial=True) == stage.state
        (_, expected), *_ = at_states(model, [stage.state], magnitudes=magnitudes)
        assert_same(into.state_dict(), expected)
        for ends, also in at_states(model, ENDS, magnitudes=magnitudes):
            if enough(ends, [there.state for there in opened.stages]):
                assert_same(opened.state_dict(*ends), also)
                continue
            with pytest.raises(pof.PofFileError, match="is cut off before the end of its chunk"):
                opened.state_dict(*ends)
            with pytest.raises(pof.PofFileError, match="is cut off before the end of its chunk"):
                pof.load(cut, into=into, sparsity=ends[0], recover_from=ends[1], partial=True)
            assert_same(into.state_dict(), expected)


def enough(ends: tuple[float, float | None], there: list[Any]) -> bool:
    """Whether a file that has come as far as to the states `there` gives this one."""
    high, low = ends[0], ends[0] if ends[1] is None else ends[1]
    boundaries = (0.9, 0.7, 0.3, 0.0)
    valued = {state[0] for state in there if state is not None}
    if high in boundaries and low in boundaries and low > 0.0:
        return high in valued and (low in valued or (0.9, low) in there)
    return any(end <= low and end in valued for end in boundaries)


def test_a_part_of_a_file_with_fixed_sparsities_says_that_it_is_not_enough(tmp_path: Path) -> None:
    model = randomised(Kinds())
    pof.save(model, whole := tmp_path / "whole.pof", sparsities={"head": 0.5})
    (cut := tmp_path / "cut.pof").write_bytes(whole.read_bytes()[:-1])
    before = bits(model)
    for arguments in ({}, {"sparsity": 0.9}):
        with pytest.raises(pof.PofFileError, match="cut off"):
            pof.load(cut, into=model, partial=True, **arguments)
    assert bits(model) == before


def test_stages_print_as_a_table(file: Path) -> None:
    text = str(pof.open(file).stages)
    assert "recovered 0.3-0.9" in text
    assert f"{file.stat().st_size}" in text.replace(",", "")
    assert repr(pof.open(file)).startswith("PofFile(")


# --- how much is read -----------------------------------------------------------------------------------------------


class Counting:
    """How many bytes were asked for, and given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        real = LocalSource.read

        def read(source: LocalSource, start: int, length: int) -> bytes:
            found = real(source, start, length)
            assert len(found) == length
            self.bytes += length
            return found

        monkeypatch.setattr(LocalSource, "read", read)


@pytest.mark.parametrize("stages", [(0.9, 0.7, 0.3), (), (0.8,)])
def test_bytes_for_is_what_is_read(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: tuple[float, ...]
) -> None:
    pof.save(model, path := tmp_path / "m.pof", stages=stages)
    counting = Counting(monkeypatch)
    into = copy.deepcopy(model)
    for ends in [(0.0, None), *ENDS]:
        expected = pof.open(path).bytes_for(*ends)
        counting.bytes = 0
        pof.load(path, into=into, sparsity=ends[0], recover_from=ends[1])
        assert counting.bytes == expected <= path.stat().st_size
        counting.bytes = 0
        pof.open(path).state_dict(*ends)
        assert counting.bytes == expected
    assert pof.open(path).bytes_for() == path.stat().st_size
    counting.bytes = 0
    opened = pof.open(path)
    assert len(opened.stages) == 2 * len(stages) + 1 + (not stages)
    assert opened.metadata == {}
    assert opened.bytes_for(0.9) > counting.bytes
    assert counting.bytes < 1500


def test_a_stage_takes_no_more_than_its_prefix(model: nn.Module, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = pof.open(file)
    counting = Counting(monkeypatch)
    for stage in opened.stages[1:]:
        assert stage.state is not None
        counting.bytes = 0
        pof.load(file, into=copy.deepcopy(model), sparsity=stage.state.sparsity, recover_from=stage.state.recover_from)
        assert counting.bytes <= 1.02 * stage.cumulative
    assert opened.bytes_for(0.9) == opened.stages[1].cumulative
    assert opened.bytes_for(0.9) < 0.25 * opened.size
    # What lies between is left out: the signs down to 0.3 are not needed for 0.7.
    assert opened.bytes_for(0.7) == opened.stages[4].cumulative - opened.stages[3].bytes
    assert opened.bytes_for(0.9, 0.3) == opened.stages[3].cumulative


# --- HTTP -----------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Server"

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        data = self.server.files.get(self.path)
        if data is None:
            self.send_response(404)
            body = b"no such file\nhere"
        elif self.server.ranges and (asked := self.headers.get("Range")):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last or len(data)), len(data) - 1)
            body = data[start : end + 1]
            if start >= len(data):
                self.send_response(416)
            else:
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(data)}")
        else:
            self.send_response(200)
            body = data
        if self.server.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if self.server.tells_length or self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.server.sent += len(body)
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges, self.tells_length, self.sent = True, True, 0

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"


@pytest.fixture
def server(file: Path) -> Iterator[Server]:
    pytest.importorskip("aiohttp")
    with Server() as found:
        found.files["/m.pof"] = file.read_bytes()
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.mark.parametrize("ends", [(0.9, None), (0.7, None), (0.9, 0.3), (0.8, None), (0.0, None)])
def test_over_http_only_what_is_needed_comes(
    model: nn.Module, file: Path, server: Server, ends: tuple[float, float | None]
) -> None:
    into = copy.deepcopy(model)
    pof.load(server.url("m.pof"), into=into, sparsity=ends[0], recover_from=ends[1])
    assert server.sent == pof.open(file).bytes_for(*ends)
    assert_same(into.state_dict(), pof.open(file).state_dict(*ends))


def test_looking_into_a_remote_file_takes_its_head_only(file: Path, server: Server) -> None:
    opened = pof.open(server.url("m.pof"))
    assert [stage.cumulative for stage in opened.stages] == [stage.cumulative for stage in pof.open(file).stages]
    assert server.sent < 1500
    assert opened.bytes_for(0.9) == pof.open(file).bytes_for(0.9)


@pytest.mark.parametrize("tells_length", [True, False])
def test_a_server_that_knows_no_ranges_works_too(
    model: nn.Module, file: Path, server: Server, tells_length: bool
) -> None:
    server.ranges, server.tells_length = False, tells_length
    for ends in ((0.9, None), (0.7, None), (0.0, None)):
        into = copy.deepcopy(model)
        pof.load(server.url("m.pof"), into=into, sparsity=ends[0], recover_from=ends[1])
        assert_same(into.state_dict(), pof.open(file).state_dict(*ends))


@pytest.mark.parametrize("ranges", [True, False])
def test_a_remote_file_that_is_cut_off(model: nn.Module, file: Path, server: Server, ranges: bool) -> None:
    server.ranges = ranges
    opened = pof.open(file)
    data = server.files["/m.pof"]
    server.files["/cut.pof"] = data[: opened.stages[1].cumulative + 10]
    server.files["/short.pof"] = data[:20]
    server.files["/empty.pof"] = b""
    server.files["/long.pof"] = data + b"x"
    into = copy.deepcopy(model)
    before = bits(into)
    for name, how in (("cut", {}), ("cut", {"partial": True, "sparsity": 0.3}), ("short", {"partial": True}),
                      ("empty", {}), ("long", {})):  # fmt: skip
        with pytest.raises(pof.PofFileError) as caught:
            pof.load(server.url(f"{name}.pof"), into=into, **how)
        assert "\n" not in str(caught.value)
    assert bits(into) == before
    assert pof.load(server.url("cut.pof"), into=into, partial=True) == (0.9, 0.9)
    assert_same(into.state_dict(), opened.state_dict(0.9))


def test_a_url_that_leads_nowhere_is_an_error_of_one_line(model: nn.Module, server: Server) -> None:
    before = bits(model)
    nowhere = server.url("missing.pof")
    for url in (nowhere, "http://127.0.0.1:9/m.pof", "memory://missing.pof", "file:///no/such/file.pof"):
        with pytest.raises(pof.PofFileError) as caught:
            pof.load(url, into=model)
        assert "\n" not in str(caught.value)
        assert url.removeprefix("file://") in str(caught.value)
    with pytest.raises(pof.PofError, match="nosuchprotocol"):
        pof.load("nosuchprotocol://a/b", into=model)
    assert bits(model) == before


# --- anything else that fsspec knows ----------------------------------------------------------------------------------


def test_written_to_and_read_from_memory(model: nn.Module, file: Path) -> None:
    url = "memory://folder/m.pof"
    size = pof.save(model, url)
    assert fsspec.filesystem("memory").cat_file("/folder/m.pof") == file.read_bytes()
    assert size == file.stat().st_size
    into = copy.deepcopy(model)
    assert pof.load(url, into=into, sparsity=0.9) == (0.9, 0.9)
    assert_same(into.state_dict(), pof.open(file).state_dict(0.9))
    with pytest.raises(pof.PofError, match="NaN"):
        broken = copy.deepcopy(model)
        with torch.no_grad():
            broken[2].weight.fill_(torch.nan)
        pof.save(broken, url)
    assert bits(pof.open(url).state_dict()) == bits(model)
    fsspec.filesystem("memory").rm("/folder", recursive=True)


def test_a_url_of_a_local_file(model: nn.Module, tmp_path: Path) -> None:
    pof.save(model, f"file://{tmp_path}/m.pof")
    assert bits(pof.open(f"local://{tmp_path}/m.pof").state_dict()) == bits(model)
    assert bits(pof.open(str(tmp_path / "m.pof")).state_dict()) == bits(model)


def test_what_cannot_be_written_is_a_pof_error(model: nn.Module, server: Server) -> None:
    for url in (server.url("new.pof"), "nosuchprotocol://a/b", "file:///proc/no/such/m.pof"):
        with pytest.raises(pof.PofError) as caught:
            pof.save(model, url)
        assert "\n" not in str(caught.value)
