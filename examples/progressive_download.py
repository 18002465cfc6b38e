"""A network over HTTP: its first bytes are a working sparse network, and more bytes make a better one.

    pip install aiohttp
    python examples/progressive_download.py

It serves the CIFAR-10 network that comes with pof from a thread of this script, and counts the bytes sent. Any server
that supports range requests will do.
"""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import torch

import pof
from pof.data import shipped

DATA = shipped.network("cifar10-resnet20-nested").read_bytes()


class Ranges(BaseHTTPRequestHandler):
    """Answers range requests with those bytes of the file."""

    sent = 0

    def do_HEAD(self) -> None:
        """Send only the length of the file."""
        self._answer(200, {"Content-Length": len(DATA), "Accept-Ranges": "bytes"})

    def do_GET(self) -> None:
        """Send the range of bytes that is asked for."""
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        part = DATA[first : last + 1]
        Ranges.sent += len(part)
        self._answer(206, {"Content-Length": len(part), "Content-Range": f"bytes {first}-{last}/{len(DATA)}"})
        self.wfile.write(part)

    def _answer(self, code: int, headers: dict[str, object]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Load more and more of the file, and test each state on 300 images."""
    torch.set_num_threads(1)
    server = HTTPServer(("127.0.0.1", 0), Ranges)
    threading.Thread(target=server.serve_forever).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/model.pof"

    images, labels = (part[:300] for part in shipped.cifar10_sample())
    model = pof.models.resnet20().eval()
    for sparsity, recover_from in ((0.9, None), (0.9, 0.7), (0.7, None), (0.0, None)):
        Ranges.sent = 0
        state = pof.load(url, into=model, sparsity=sparsity, recover_from=recover_from)
        with torch.no_grad():
            accuracy = float((model(images).argmax(1) == labels).float().mean())
        print(f"{state}: {Ranges.sent:,} of {len(DATA):,} bytes sent, accuracy {accuracy:.1%}")
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()
