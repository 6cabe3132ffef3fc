"""Make metrics in the Prometheus form, all named `pentimento_…_seconds|_total|_bytes|_count|_share`.

Labels are few and closed (method, code, model, stage): a prompt, user or tenant never becomes one.
"""

import re
import socket
from collections.abc import Sequence
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from time import sleep
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import Counter, Gauge, Histogram, make_wsgi_app

# From one IPC round trip to a slow image.
LATENCY_BUCKETS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
NAME = re.compile(r"pentimento_[a-z0-9_]+_(seconds|total|bytes|count|share|similarity)")
# Concurrent connections, a thread each; further ones are closed.
MAX_SCRAPES = 32
# Descriptors have run out: other connections end in this time.
RETRY_S = 0.05
FORBIDDEN_LABELS = frozenset({"prompt", "user", "tenant", "token", "request_id"})


def checked(name: str, labels: Sequence[str]) -> str:
    """Return the name. ValueError if name or labels violate the scheme."""
    if not NAME.fullmatch(name):
        raise ValueError(f"metric name {name!r} must match {NAME.pattern}")
    if forbidden := FORBIDDEN_LABELS & set(labels):
        raise ValueError(f"metric {name} must not have the labels {sorted(forbidden)}")
    return name


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    """Make a count that only grows; `name` ends in `_total`."""
    return Counter(checked(name, labels), help_text, labels)


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """Make a level that rises and falls."""
    return Gauge(checked(name, labels), help_text, labels)


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS_S
) -> Histogram:
    """Make a distribution, in the unit at the end of the name."""
    return Histogram(checked(name, labels), help_text, labels, buckets=buckets)


class ScrapeHandler(WSGIRequestHandler):
    """Answer one scrape; `timeout` is how long its client may send or take nothing [s]."""

    timeout = 10.0

    def log_message(self, format: str, *args: Any) -> None:
        """Log no scrape."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serve `/metrics` at `address`: a thread for each connection, and at most MAX_SCRAPES connections."""

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(
            host.strip("[]") or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.address_family, address = found[0][0], found[0][4][0]
        self._places = BoundedSemaphore(MAX_SCRAPES)
        super().__init__((str(address), port), ScrapeHandler)
        self.set_app(make_wsgi_app())
        self.address = f"{host}:{self.server_port}"
        self.thread = Thread(target=self.serve_forever, name="metrics", daemon=True)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection; pause after a failure: the connection stays queued, and retries would use a whole
        core."""
        try:
            return super().get_request()
        except OSError:
            sleep(RETRY_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            return self.shutdown_request(request)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that sent nothing in time, or left."""


def start_metrics_server(listen: str) -> MetricsServer | None:
    """Serve `/metrics` at "host:port" from its own thread; None if `listen` is empty. OSError if the address is
    taken."""
    if not listen:
        return None
    host, _, port = listen.rpartition(":")
    server = MetricsServer(host, int(port))
    server.thread.start()
    return server
