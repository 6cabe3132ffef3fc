"""Test requests answered before their bodies were read."""

from contextlib import suppress

import pytest

from services.edge.http import bounded
from tests.integration.edge.conftest import EdgeUnderTest
from tests.integration.edge.sockets import GOOD, JSON_HEAD, answer_to, assert_generates, connection, eventually, limited

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
WRONG_TYPE = JSON_HEAD.replace(b"application/json", b"text/plain")


def waiting(head: bytes) -> bytes:
    """Return a head with `Expect: 100-continue`."""
    return head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GOOD)


async def test_refusal_of_awaited_body_closes_connection(edge: EdgeUnderTest) -> None:
    """The client may still send the body, or the next request instead, so the next bytes would be ambiguous."""
    answer = await answer_to(edge, waiting(WRONG_TYPE))

    assert answer.startswith(b"HTTP/1.1 400 ") and b"\r\nconnection: close\r\n" in answer
    await assert_generates(edge)


@pytest.mark.parametrize("at_once", [False, True], ids=["when asked", "at once"])
async def test_connection_continues_after_an_awaited_body(edge: EdgeUnderTest, at_once: bool) -> None:
    async with connection(edge) as (reader, writer):
        writer.write(waiting(JSON_HEAD) + (GOOD if at_once else b""))
        if not at_once:
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(GOOD)
        writer.write(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = await reader.read()

    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 2


async def test_http_1_0_gets_no_100_continue(edge: EdgeUnderTest) -> None:
    answer = await answer_to(edge, waiting(JSON_HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")), GOOD)

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.slow
@limited(idle_timeout_s=1.0)
async def test_connection_with_body_after_answer_ends_when_idle(edge: EdgeUnderTest) -> None:
    async with connection(edge) as (reader, writer):
        writer.write(WRONG_TYPE + b"Content-Length: %d\r\n\r\n" % len(GOOD))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        writer.write(GOOD)

        await reader.read()


@limited(connections=2)
async def test_connection_with_body_after_answer_is_closed_for_others(edge: EdgeUnderTest) -> None:
    async with connection(edge) as (oldest, writer), connection(edge):
        writer.write(WRONG_TYPE + b"Content-Length: %d\r\n\r\n" % len(GOOD))
        assert (await oldest.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        writer.write(GOOD)
        await eventually(lambda: edge.listener.connection_count == 2)
        async with connection(edge), connection(edge):
            with suppress(ConnectionResetError):
                await oldest.read()


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
async def test_refused_client_that_closes_may_send_its_whole_body(
    edge: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch, version: bytes
) -> None:
    """Proxies that speak HTTP/1.0 do so: nginx answers for an edge that it cannot write to."""
    monkeypatch.setattr(bounded, "LAST_BODY_S", 60.0)
    chunk, count = b" " * 65536, 64
    head = WRONG_TYPE.replace(b"HTTP/1.1", version)
    async with connection(edge) as (reader, writer):
        writer.write(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (len(chunk) * count))
        answer = await reader.readuntil(b"\r\n\r\n")
        for _ in range(count):
            writer.write(chunk)
            await writer.drain()
        await reader.read()

    assert answer.startswith(b"HTTP/1.1 400 ") and b"\r\nconnection: close\r\n" in answer


@pytest.mark.slow
async def test_a_body_that_does_not_come_behind_the_last_answer_is_not_waited_for(edge: EdgeUnderTest) -> None:
    answer = await answer_to(edge, WRONG_TYPE + b"Connection: close\r\nContent-Length: 100\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400 ")
