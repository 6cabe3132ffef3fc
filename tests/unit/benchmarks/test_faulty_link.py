"""A link that disturbs connections: refuses, changes bytes, and ends one side with the other."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator

import pytest

from benchmarks.suites.faulty_link import LEAST_WRONG_BYTES, FaultyLink, LinkFault, ended

LARGE = b"large" * LEAST_WRONG_BYTES


class Echo:
    """A server that answers each byte of a call with a small or a large answer, or resets the connection."""

    def __init__(self, answers: dict[bytes, bytes]) -> None:
        self._answers = answers

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while call := await reader.read(1):
            if call == b"r":
                # A reset instead of an end, as from a killed process with unread bytes.
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                break
            writer.write(self._answers[call])
        await ended(writer)


@pytest.fixture
async def link() -> AsyncIterator[FaultyLink]:
    server = await asyncio.start_server(Echo({b"s": b"small", b"l": LARGE}).serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    made = FaultyLink(lambda: f"127.0.0.1:{port}")
    await made.start()
    yield made
    await made.close()
    server.close()
    await server.wait_closed()


async def answer_of(link: FaultyLink, call: bytes, size: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    try:
        writer.write(call)
        return await reader.readexactly(size)
    finally:
        await ended(writer)


async def test_link_forwards_and_changes_large_answers_while_they_are_wrong(link: FaultyLink) -> None:
    assert await answer_of(link, b"l", len(LARGE)) == LARGE

    link.disturb(LinkFault.WRONG)
    assert await answer_of(link, b"s", 5) == b"small"
    assert await answer_of(link, b"l", len(LARGE)) != LARGE

    link.disturb(LinkFault.NONE)
    assert await answer_of(link, b"l", len(LARGE)) == LARGE


async def test_outage_ends_open_connections_and_refuses_new_ones(link: FaultyLink) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    writer.write(b"s")
    assert await reader.readexactly(5) == b"small"

    link.disturb(LinkFault.OUTAGE)

    assert await reader.read(1) == b""
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await answer_of(link, b"s", 5)
    await ended(writer)


async def test_reset_of_the_server_reaches_the_client(link: FaultyLink) -> None:
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await answer_of(link, b"r", 1)
