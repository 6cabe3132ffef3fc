"""Serve files of a directory as S3 objects over HTTP, each answer delayed and throttled like a connection to a remote
store, in a separate process."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

DELAY_S = 0.02
BYTES_PER_S = 60e6
_PIECE_BYTES = 2**18


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory: Path

    def do_GET(self) -> None:
        path = self.directory / self.path.partition("?")[0].rpartition("/")[2]
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        stated = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(stated[1]), min(int(stated[2]), size - 1)) if stated else (0, size - 1)
        time.sleep(DELAY_S)
        self.send_response(206 if stated else 200)
        self.send_header("ETag", '"tag"')
        self.send_header("Content-Length", str(last + 1 - first))
        if stated:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        self._send(path, first, last + 1)

    def _send(self, path: Path, start: int, end: int) -> None:
        began_s, sent = time.monotonic(), 0
        with path.open("rb") as file:
            file.seek(start)
            while sent < end - start:
                piece = file.read(min(_PIECE_BYTES, end - start - sent))
                sent += len(piece)
                # The last byte arrives no earlier than the rate allows.
                time.sleep(max(0.0, began_s + sent / BYTES_PER_S - time.monotonic()))
                self.wfile.write(piece)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def _serve(directory: Path, ready: Connection) -> None:
    handler = type("Handler", (_Handler,), {"directory": directory})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    ready.send(server.server_address[1])
    server.serve_forever()


@contextmanager
def slow_objects(directory: Path) -> Iterator[str]:
    """Yield the address of a server of the files in `directory`, by name."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(directory, theirs), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.kill()
        process.join()
