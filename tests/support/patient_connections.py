"""Connections that survive a stall of the machine, for tests that are client and server in one process."""

import pytest

from pentimento.rpc import transport


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits of connections: 1.5 s after an unanswered ping, 1 s while connecting. A test process is both
    ends; without a processor for that long it would lose all its calls."""
    longer = {"grpc.keepalive_timeout_ms": 60_000, "grpc.http2.ping_timeout_ms": 60_000}
    monkeypatch.setattr(transport, "KEEPALIVE", tuple((dict(transport.KEEPALIVE) | longer).items()))
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_MS", 10_000)
