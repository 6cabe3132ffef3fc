"""The sockets that HTTP is served on, and how serving ends."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from pentimento.rpc import RpcServerSettings
from services.edge.app import EdgeApp
from services.edge.http.bounded import DEFAULT_LIMITS, end_longest_readers
from services.edge.http.callers import origin_rule
from services.edge.http.listener import HttpListener
from services.edge.settings import HttpSettings, drain_delay_of


def test_an_answer_does_not_wait_until_its_head_is_acknowledged() -> None:
    listener = HttpListener(None, HttpSettings(http_listen="127.0.0.1:0"), RpcServerSettings(), DEFAULT_LIMITS)
    listener.bind()
    listening = listener._socket
    assert listening is not None
    with listening, socket.create_connection(listening.getsockname()):
        listening.setblocking(True)
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.fixture(autouse=True)
def rare_dates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make date updates rare, so that only a stop ends serving within a test."""
    monkeypatch.setattr("services.edge.http.listener.DATE_S", 3600.0)


class HeldApp:
    """An app that answers once `release` is set; `entered` and `cancelled` show the state of its calls."""

    def __init__(self) -> None:
        self.entered, self.release, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"done"})


@asynccontextmanager
async def asked(
    app: Any, drain_timeout_s: float, entered: asyncio.Event | None = None
) -> AsyncIterator[tuple[HttpListener, asyncio.StreamReader]]:
    """Start a listener with one request of a client."""
    http, rpc = (
        HttpSettings(http_listen="127.0.0.1:0", drain_delay_s=0.0),
        RpcServerSettings(drain_timeout_s=drain_timeout_s),
    )
    listener = HttpListener(app, http, rpc, DEFAULT_LIMITS)
    async with asyncio.timeout(60):
        await listener.start()
        host, _, port = listener.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await (entered or app.entered).wait()
        yield listener, reader
        writer.close()


async def test_drain_waits_for_running_answer_and_accepts_no_connection() -> None:
    app = HeldApp()
    async with asked(app, 60.0) as (listener, reader):
        draining = asyncio.ensure_future(listener.drain())
        while True:
            try:
                _, other = await asyncio.open_connection(*listener.address.rsplit(":", 1))
                other.close()
            except ConnectionError:
                break
        assert not draining.done()
        app.release.set()
        answer = await reader.read()
        await draining

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\ndone")
    assert b"\r\ndate: " in answer
    assert listener.connection_count == 0


async def test_an_answer_that_takes_longer_than_the_drain_is_cancelled() -> None:
    app = HeldApp()
    async with asked(app, 0.01) as (listener, _):
        await listener.drain()
        await app.cancelled.wait()


async def test_request_cancelled_before_its_answer_gets_retry_time() -> None:
    held = HeldApp()

    async def hold(request: Request) -> Response:
        held.entered.set()
        await held.release.wait()
        return Response()

    app = EdgeApp([Route("/", hold)], origin_rule("127.0.0.1:0", (), ()))
    async with asked(app, 0.01, held.entered) as (listener, reader):
        await listener.drain()
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: " in answer and b'"code":"SHUTTING_DOWN"' in answer


async def test_events_that_the_drain_ends_end_by_an_error() -> None:
    begun = asyncio.Event()

    async def tell(request: Request) -> Response:
        async def events() -> AsyncIterator[bytes]:
            yield b": still generating\n\n"
            begun.set()
            await asyncio.Event().wait()

        return StreamingResponse(events(), headers={"content-type": "text/event-stream; charset=utf-8"})

    app = EdgeApp([Route("/", tell)], origin_rule("127.0.0.1:0", (), ()))
    async with asked(app, 0.01, begun) as (listener, reader):
        await listener.drain()
        answer = await reader.read()

    assert b"event: error\ndata: {" in answer and b'"code":"SHUTTING_DOWN"' in answer
    assert answer.endswith(b"}\n\n\r\n0\r\n\r\n")


async def test_the_date_of_answers_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.edge.http.listener.DATE_S", 0.001)
    app = HeldApp()
    app.release.set()
    async with asked(app, 60.0) as (listener, _):
        state = listener._server.server_state
        before = state.default_headers
        while state.default_headers is before:  # noqa: ASYNC110 - an attribute of uvicorn's
            await asyncio.sleep(0)
        await listener.drain()


@pytest.mark.parametrize("address", ["unix:/run/edge", "my..host:80"])
def test_wrong_http_address_is_rejected_by_name(address: str) -> None:
    with pytest.raises(ValueError, match="--http-listen must be host:port"):
        HttpSettings(http_listen=address)


def test_idle_timeout_exceeds_load_balancers() -> None:
    """AWS, Google, Azure and nginx keep theirs for 60 to 75 s."""
    assert HttpSettings().idle_timeout_s >= 75.0


@pytest.mark.parametrize(("delay_s", "drain_s", "expected_s"), [(5.0, 30.0, 5.0), (5.0, 6.0, 3.0), (0.0, 30.0, 0.0)])
def test_the_drain_delay_leaves_half_of_the_drain(delay_s: float, drain_s: float, expected_s: float) -> None:
    http, rpc = HttpSettings(drain_delay_s=delay_s), RpcServerSettings(drain_timeout_s=drain_s)

    assert drain_delay_of(http, rpc) == expected_s


@dataclass
class Reader:
    """A connection with a client that has not read its answer since `read_since`."""

    read_since: float | None
    unread_bytes: int
    reasons: list[str] = field(default_factory=list)

    def cut_off(self, bound: str) -> None:
        self.reasons.append(bound)


@pytest.mark.parametrize(
    ("limit_bytes", "ended"), [(190, []), (189, [60]), (130, [60]), (129, [60, 30]), (1, [60, 30])]
)
def test_longest_unread_answers_end_until_limit_holds(limit_bytes: int, ended: list[int]) -> None:
    readers = [Reader(3.0, 100), Reader(None, 1000), Reader(1.0, 60), Reader(2.0, 30)]

    end_longest_readers(readers, limit_bytes)  # type: ignore[arg-type]

    told = sorted((one for one in readers if one.reasons), key=lambda one: one.read_since or 0.0)
    assert [one.unread_bytes for one in told] == ended
    assert all(one.reasons == ["unread_bytes"] for one in told)
