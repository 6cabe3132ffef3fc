"""Metrics in the Prometheus form, all named `pentimento_…_seconds|_total|_bytes|_count|_share`.

Labels are few and closed (method, code, model, stage): a prompt, user or tenant never becomes one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread
from wsgiref.simple_server import WSGIServer

from prometheus_client import Counter, Gauge, Histogram, start_http_server

# From one IPC round trip to a slow picture.
LATENCY_BUCKETS_S = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
NAME = re.compile(r"pentimento_[a-z0-9_]+_(seconds|total|bytes|count|share|similarity)")
FORBIDDEN_LABELS = frozenset({"prompt", "user", "tenant", "token", "request_id"})


def checked(name: str, labels: Sequence[str]) -> str:
    """The name, or ValueError when name or labels leave the scheme."""
    if not NAME.fullmatch(name):
        raise ValueError(f"metric name {name!r} must match {NAME.pattern}")
    if forbidden := FORBIDDEN_LABELS & set(labels):
        raise ValueError(f"metric {name} must not have the labels {sorted(forbidden)}")
    return name


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    """A count that only grows; `name` ends in `_total`."""
    return Counter(checked(name, labels), help_text, labels)


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """A level that rises and falls."""
    return Gauge(checked(name, labels), help_text, labels)


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = LATENCY_BUCKETS_S
) -> Histogram:
    """A distribution, in the unit that the name ends in."""
    return Histogram(checked(name, labels), help_text, labels, buckets=buckets)


@dataclass(frozen=True)
class MetricsServer:
    """The HTTP listener of `/metrics`; `address` is the host and port it really has."""

    address: str
    server: WSGIServer
    thread: Thread

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def start_metrics_server(listen: str) -> MetricsServer | None:
    """Serves `/metrics` at "host:port" from its own thread; None when `listen` is empty. OSError when it is taken."""
    if not listen:
        return None
    host, _, port = listen.rpartition(":")
    server, thread = start_http_server(int(port), addr=host.strip("[]") or "0.0.0.0")
    return MetricsServer(f"{host}:{server.server_port}", server, thread)
