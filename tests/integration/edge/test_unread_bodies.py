"""Requests that are answered before their bodies are there."""

from contextlib import suppress

from tests.integration.edge.conftest import EdgeUnderTest
from tests.integration.edge.sockets import GOOD, JSON_HEAD, connection, eventually, limited

WRONG_TYPE = JSON_HEAD.replace(b"application/json", b"text/plain")


@limited(idle_timeout_s=1.0)
async def test_a_connection_whose_body_ends_behind_its_answer_does_not_idle_for_ever(edge: EdgeUnderTest) -> None:
    async with connection(edge) as (reader, writer):
        writer.write(WRONG_TYPE + b"Content-Length: %d\r\n\r\n" % len(GOOD))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        writer.write(GOOD)

        await reader.read()


@limited(http_connections=2)
async def test_a_connection_whose_body_ended_behind_its_answer_makes_room(edge: EdgeUnderTest) -> None:
    async with connection(edge) as (oldest, writer), connection(edge):
        writer.write(WRONG_TYPE + b"Content-Length: %d\r\n\r\n" % len(GOOD))
        assert (await oldest.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
        writer.write(GOOD)
        await eventually(lambda: edge.listener.connection_count == 2)
        async with connection(edge), connection(edge):
            with suppress(ConnectionResetError):
                await oldest.read()
