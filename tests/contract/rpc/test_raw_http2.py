"""Test that the hand-written HTTP/2 frames are valid where they should be."""

from collections.abc import AsyncIterator

import pytest

from lab.fixtures.raw_http2 import RawConnection, framed, raw_connection
from pentimento.api.embedder.v1 import embedder_service_pb2
from pentimento.rpc import RpcServerSettings
from tests.contract.rpc.scripted import EMBED_TEXT, serving

MESSAGE = embedder_service_pb2.EmbedTextRequest(texts=["a"]).SerializeToString()


@pytest.fixture
async def connection() -> AsyncIterator[RawConnection]:
    settings = RpcServerSettings(listen=("127.0.0.1:0",))
    async with serving(settings) as server, raw_connection(server.address) as opened:
        yield opened


async def test_a_whole_message_is_answered(connection: RawConnection) -> None:
    stream = await connection.headers(EMBED_TEXT)
    await connection.data(stream, framed(MESSAGE), end=True)

    await connection.all_answered(30.0)

    assert connection.answers == {"grpc-status 0": 1, "UNANSWERED": 0}


async def test_a_message_that_never_ends_is_not_answered(connection: RawConnection) -> None:
    stream = await connection.headers(EMBED_TEXT)
    sent = await connection.data(stream, framed(MESSAGE)[:-1])

    await connection.all_answered(0.0)

    assert sent == len(framed(MESSAGE)) - 1
    assert connection.answers == {"UNANSWERED": 1}


async def test_a_stream_that_was_reset_is_not_waited_for(connection: RawConnection) -> None:
    await connection.reset(await connection.headers(EMBED_TEXT))

    await connection.all_answered(30.0)

    assert connection.answers == {"UNANSWERED": 0}


async def test_stream_reports_the_end_of_its_call(connection: RawConnection) -> None:
    stream = await connection.headers("/pentimento.api.embedder.v1.EmbedderService/GetInfo")
    await connection.data(stream, framed(b""), end=True)

    assert (await connection.end_of(stream))["grpc-status"] == "12"


async def test_a_call_that_does_not_end_is_not_waited_for(connection: RawConnection) -> None:
    stream = await connection.headers(EMBED_TEXT)

    with pytest.raises(TimeoutError):
        await connection.end_of(stream, limit_s=0.01)
