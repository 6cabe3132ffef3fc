"""Call the edge by its bare sockets, to send bytes that no HTTP client sends."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from lab.fixtures.frontdoor_suite import until
from tests.integration.edge.conftest import EdgeUnderTest

GUARD_S = 60
JSON_HEAD = b"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
FORM_HEAD = b"POST /v1/images/edits HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\n"
GOOD = b'{"prompt": "x", "num_inference_steps": 1}'


def limited(**settings: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("limits", [settings], ids=lambda _: "")


@asynccontextmanager
async def connection(edge: EdgeUnderTest) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = edge.listener.address.rpartition(":")
    async with asyncio.timeout(GUARD_S):
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 16)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def answer_to(edge: EdgeUnderTest, *sent: bytes) -> bytes:
    """Return the received bytes once the edge ends the connection."""
    async with connection(edge) as (reader, writer):
        for part in sent:
            writer.write(part)
        received = b""
        try:
            while chunk := await reader.read(1 << 16):
                received += chunk
        except ConnectionResetError:
            pass
        return received


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(GUARD_S):
        await until(holds)


@contextmanager
def unhurried(edge: EdgeUnderTest) -> Iterator[None]:
    """Lift the time limits for connections that are opened inside the block: a busy machine may exceed a test's
    limits."""
    given = edge.listener._server.config.http_protocol_class.keywords  # type: ignore[union-attr]
    limits = given["limits"]
    names = ("header_timeout_s", "body_timeout_s", "idle_timeout_s", "write_timeout_s")
    given["limits"] = replace(limits, **dict.fromkeys(names, float(GUARD_S)))
    try:
        yield
    finally:
        given["limits"] = limits


async def assert_generates(edge: EdgeUnderTest) -> None:
    with unhurried(edge):
        answer = await edge.generate(num_inference_steps=1)
    assert answer.status_code == 200


def with_body(body: bytes, head: bytes = JSON_HEAD) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def ended_while_sending(edge: EdgeUnderTest, begin: bytes, more: bytes, status: int) -> None:
    """Send `begin`, then `more` repeatedly, until the edge ends the connection with that status, or the client can no
    longer read. Nothing was generated, and the next request completes."""
    async with connection(edge) as (reader, writer):
        writer.write(begin)
        reading = asyncio.ensure_future(reader.read())
        while not reading.done() and not writer.is_closing():
            writer.write(more)
            await asyncio.wait([reading], timeout=0.001 if len(more) > 100 else 0.05)

    assert reading.exception() is not None or reading.result().startswith(b"HTTP/1.1 %d " % status)
    assert edge.worker.executed == []
    await assert_generates(edge)
