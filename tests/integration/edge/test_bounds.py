"""Test each bound on unknown callers over a real socket; afterwards the same process generates an image."""

import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from services.edge.http import bounded
from tests.integration.edge.conftest import EdgeUnderTest
from tests.integration.edge.sockets import (
    FORM_HEAD,
    GOOD,
    JSON_HEAD,
    answer_to,
    assert_generates,
    connection,
    ended_while_sending,
    eventually,
    limited,
    with_body,
)

UPLOAD = JSON_HEAD + b"Content-Length: 1000000\r\n\r\n"


@limited(header_timeout_s=0.3)
async def test_head_that_does_not_come_ends_the_connection(edge: EdgeUnderTest) -> None:
    for sent in (b"", b"POST /v1/images/generations HTTP/1.1\r\nHost: local"):
        assert (await answer_to(edge, sent)).startswith(b"HTTP/1.1 408 ")
    await assert_generates(edge)


@limited(header_bytes=2048)
async def test_head_that_is_too_large_is_refused(edge: EdgeUnderTest) -> None:
    for name, sent in {
        "one header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 4096 + b"\r\n\r\n",
        "many headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: a\r\n" * 1000 + b"\r\n",
        "path": b"GET /" + b"a" * 4096 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "never ends": b"GET /health HTTP/1.1\r\nX-A: " + b"a" * 4096,
    }.items():
        assert (await answer_to(edge, sent)).startswith(b"HTTP/1.1 431 "), name
    await assert_generates(edge)


@pytest.mark.slow
@limited(max_body_bytes=2048)
async def test_body_that_is_too_large_is_refused_unread(edge: EdgeUnderTest) -> None:
    declared = await answer_to(edge, JSON_HEAD + b"Connection: close\r\nContent-Length: 999999999999\r\n\r\n")
    chunked = JSON_HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    grown = await answer_to(edge, chunked, (b"400\r\n" + b" " * 1024 + b"\r\n") * 3)

    for answer in (declared, grown):
        assert answer.startswith(b"HTTP/1.1 413 ") and b"MESSAGE_TOO_LARGE" in answer
    await assert_generates(edge)


@pytest.mark.slow
@limited(idle_timeout_s=0.3)
async def test_a_body_that_stops_ends_the_connection(edge: EdgeUnderTest) -> None:
    answer = await answer_to(edge, JSON_HEAD + b"Content-Length: 100\r\n\r\n{")

    assert answer.startswith(b"HTTP/1.1 408 ")
    await assert_generates(edge)


@limited(header_timeout_s=0.1)
async def test_body_below_the_least_rate_ends_the_connection(
    edge: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender begins fast, is never silent, and is far from the end of its time limit."""
    monkeypatch.setattr(bounded, "SLOW_SENDING_S", 0.3)
    await ended_while_sending(edge, UPLOAD + b" " * 100, b" ", 408)


@pytest.mark.slow
@limited(body_timeout_s=0.3)
async def test_a_body_that_trickles_ends_the_connection(edge: EdgeUnderTest) -> None:
    await ended_while_sending(edge, UPLOAD, b" ", 408)


HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"


@limited(connections=3)
@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHo", HEALTH + b"\r\n"], ids=["silent", "half", "idle"])
async def test_connection_that_waited_longest_is_closed_beyond_the_bound(edge: EdgeUnderTest, sent: bytes) -> None:
    async with connection(edge) as (oldest, writer):
        writer.write(sent)
        if sent.endswith(b"\r\n\r\n"):
            assert (await oldest.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        async with connection(edge) as (younger, _), connection(edge):
            await eventually(lambda: edge.listener.connection_count == 3)

            answer = await answer_to(edge, HEALTH + b"Connection: close\r\n\r\n")
            with suppress(ConnectionResetError):
                await oldest.read()

            assert answer.startswith(b"HTTP/1.1 200 ")
            await eventually(lambda: edge.listener.connection_count == 2)
            assert not younger.at_eof()


@limited(connections=3)
async def test_connections_beyond_the_bound_are_closed_where_all_others_are_at_work(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()
    async with connection(edge) as one, connection(edge) as other, connection(edge) as third:
        for _, writer in (one, other, third):
            writer.write(with_body(GOOD))
        await edge.worker.wait_until(lambda: edge.worker.running)
        await eventually(lambda: len(edge.suite.frontdoor.jobs) == 3)

        assert await answer_to(edge, HEALTH + b"\r\n") == b""

        edge.worker.hold.set()
        for reader, _ in (one, other, third):
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")


async def until_three(edge: EdgeUnderTest, are: Callable[[Any], object]) -> None:
    """Wait until there are three connections, all in that state."""
    connections = edge.listener._server.server_state.connections
    await eventually(lambda: len(connections) == 3 and all(map(are, connections)))


@limited(connections=3)
async def test_slowest_sender_is_closed_if_none_is_idle(edge: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "SENDING_GRACE_S", 0.1)
    async with (
        connection(edge) as (slow, trickle),
        connection(edge) as (quick, flood),
        connection(edge) as (third, more),
    ):
        for writer, count in ((flood, 9000), (trickle, 1), (more, 5000)):
            writer.write(UPLOAD + b" " * count)
        await until_three(edge, lambda one: one._sent_bytes_per_s(time.monotonic()))

        answer = await answer_to(edge, HEALTH + b"Connection: close\r\n\r\n")

        assert answer.startswith(b"HTTP/1.1 200 ")
        assert (await slow.read()).startswith(b"HTTP/1.1 408 ")
        await eventually(lambda: edge.listener.connection_count == 2)
        assert not (quick.at_eof() or third.at_eof())


@limited(connections=3)
async def test_connection_that_has_just_begun_to_send_stays_open(
    edge: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "SENDING_GRACE_S", 60.0)
    async with connection(edge) as (one, first), connection(edge) as (_, second), connection(edge) as (_, third):
        for writer in (first, second, third):
            writer.write(UPLOAD)
        await until_three(edge, lambda one: one._phase is bounded.ConnectionPhase.BODY)

        assert await answer_to(edge, HEALTH + b"\r\n") == b""

        assert not one.at_eof()


@limited(connections=8)
async def test_silent_connections_block_no_caller(edge: EdgeUnderTest) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(32):
            await stack.enter_async_context(connection(edge))

        await assert_generates(edge)

        assert edge.listener.connection_count <= 8


@limited(connections=3)
async def test_an_answer_that_is_still_being_read_makes_no_room(edge: EdgeUnderTest) -> None:
    edge.worker.picture_bytes = 8 << 20
    async with AsyncExitStack() as stack:
        reader, writer = await stack.enter_async_context(connection(edge))
        writer.write(with_body(GOOD))
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        received = 0
        while received < size:
            # Connections beyond the bound end silent ones.
            await stack.enter_async_context(connection(edge))
            received += len(await reader.readexactly(min(size - received, 1 << 18)))

    assert size > 8 << 20
    assert edge.listener.connection_count <= 3


TWO_MEANINGS = (
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    b"Content-Length: 4\r\nContent-Length: 5\r\n\r\n{}{}",
    b"Content-Length: +4\r\n\r\n{}{}",
    b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    b"X: y\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 99999999999999999999999\r\n\r\n{}{}",
    b"Content-Length:\r\n 4\r\n\r\n{}{}",
    b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    b"X-A: a\0b\r\nContent-Length: 2\r\n\r\n{}",
    b"X-A: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
)


async def test_a_head_with_two_meanings_is_refused_and_nothing_after_it_is_read(edge: EdgeUnderTest) -> None:
    for framing in TWO_MEANINGS:
        answer = await answer_to(edge, JSON_HEAD + framing + with_body(GOOD))

        assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1, framing
    assert edge.worker.executed == []
    await assert_generates(edge)


async def test_a_flood_of_pipelined_requests_ends_the_connection(edge: EdgeUnderTest) -> None:
    edge.worker.hold.clear()

    answer = await answer_to(edge, with_body(GOOD) * 100)

    assert answer.count(b"HTTP/1.1 200") == 0
    edge.worker.hold.set()
    await assert_generates(edge)


@limited(write_timeout_s=0.3)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_reader_that_stops_is_cut_off(edge: EdgeUnderTest, stream: bool) -> None:
    edge.worker.picture_bytes = 12 << 20
    body = b'{"prompt": "x", "num_inference_steps": 1, "stream": %s}' % (b"true" if stream else b"false")

    async with connection(edge) as (_, writer):
        writer.transport.pause_reading()
        writer.write(with_body(body))
        await edge.worker.wait_until(lambda: edge.worker.finished)
        await eventually(lambda: edge.listener.connection_count == 0)

    edge.worker.picture_bytes = 0
    await assert_generates(edge)


@pytest.mark.slow
@limited(unread_bytes=1 << 20)
async def test_answers_that_are_not_read_are_bounded_together(edge: EdgeUnderTest) -> None:
    """The connection with the oldest unread answer is closed, except the last remaining one."""
    edge.worker.picture_bytes = 12 << 20
    state = edge.listener._server.server_state

    async with connection(edge) as (_, first), connection(edge) as (reader, second):
        for writer, is_seen in (
            (first, lambda: any(one.read_since for one in state.connections)),  # type: ignore[union-attr]
            (second, lambda: edge.listener.connection_count == 1),
        ):
            writer.transport.pause_reading()
            writer.write(with_body(GOOD, JSON_HEAD + b"Connection: close\r\n"))
            await eventually(is_seen)
        second.transport.resume_reading()
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"}")
    edge.worker.picture_bytes = 0
    await assert_generates(edge)


NO_FORMS = (
    b"",
    b"--b\r\n",
    b"--b--\r\n",
    b"--b\r\n\r\nx\r\n--b--\r\n",
    b"--c\r\nContent-Disposition: form-data; name=prompt\r\n\r\nx\r\n--c--\r\n",
    b'--b\r\nContent-Disposition: form-data; name="prompt"\r\n\r\nx',
    b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--\r\n",
    b'--b\r\nContent-Disposition: form-data; name="' + b"n" * 4096 + b'"\r\n\r\nx\r\n--b--\r\n',
    b"--b\r\n" + b"X-A: a\r\n" * 100 + b"\r\nx\r\n--b--\r\n",
    b'--b\r\nContent-Disposition: form-data; name="p"\r\n\r\n\r\n' * 1000 + b"--b--\r\n",
)


async def test_form_that_is_none_is_refused_and_not_logged(
    edge: EdgeUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (*NO_FORMS, b"no form"):
        answer = await answer_to(edge, with_body(body, FORM_HEAD + b"Connection: close\r\n"))

        assert answer.startswith(b"HTTP/1.1 400 "), body[:60]
    assert [record.name for record in caplog.records if record.name.startswith("python_multipart")] == []
    await assert_generates(edge)


@limited(max_body_bytes=4096)
async def test_bodies_of_one_caller_are_bounded_together(edge: EdgeUnderTest) -> None:
    """A caller may have half of the 16 bodies."""
    async with AsyncExitStack() as stack:
        for _ in range(8):
            _, writer = await stack.enter_async_context(connection(edge))
            writer.write(JSON_HEAD + b"Content-Length: 4096\r\n\r\n" + b" " * 4080)
        refused = await edge.generate(negative_prompt="x" * 300)
        while refused.status_code == 200:
            refused = await edge.generate(negative_prompt="x" * 300)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["code"] == "BODIES_FULL"
