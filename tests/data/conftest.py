"""A real HTTP server on this machine, and a cache that is empty."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@dataclass
class Site:
    """Serves `files` by name; those in `announced` claim another length, those in `stuck` stop in the middle."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    announced: dict[str, int] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    mute: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            site.asked.append(name)
            if name in site.mute:
                site.closing.wait(30)
                return
            if name not in site.files:
                self.send_error(404)
                return
            content = site.files[name]
            self.send_response(200)
            self.send_header("Content-Length", str(site.announced.get(name, len(content))))
            self.end_headers()
            if name in site.stuck:
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                site.closing.wait(30)
            else:
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(site))
    server.daemon_threads = True
    site.address = f"http://127.0.0.1:{server.server_address[1]}/files"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield site
    site.closing.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for datasets."""
    monkeypatch.setenv("POF_DATA", str(tmp_path / "home"))
    return tmp_path / "home"
