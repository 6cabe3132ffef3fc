"""Connections that outlast that a machine stands still for a second, wherever a test is client and server at once."""

import pytest

from pentimento.rpc import transport


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is given up a second and a half after a ping that nobody answered, and after a second while it is
    made. A test process that has no processor for so long is both ends of it, and would lose all its calls."""
    longer = {"grpc.keepalive_timeout_ms": 60_000, "grpc.http2.ping_timeout_ms": 60_000}
    monkeypatch.setattr(transport, "KEEPALIVE", tuple((dict(transport.KEEPALIVE) | longer).items()))
    monkeypatch.setattr(transport, "CONNECT_TIMEOUT_MS", 10_000)
