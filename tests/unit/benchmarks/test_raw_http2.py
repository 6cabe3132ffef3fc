"""What the attacks send by hand is HTTP/2 and gRPC as far as they want it to be."""

from collections.abc import AsyncIterator

import pytest

from benchmarks.attacks.raw_http2 import RawConnection, message_prefix, raw_connection
from benchmarks.attacks.target import PUBLIC, AttackTarget
from pentimento.api.embedder.v1 import embedder_service_pb2
from pentimento.rpc import RpcServerSettings
from tests.contract.rpc.scripted import EMBED_TEXT, serving

MESSAGE = embedder_service_pb2.EmbedTextRequest(texts=["a"]).SerializeToString()


@pytest.fixture
async def connection() -> AsyncIterator[RawConnection]:
    async with serving(RpcServerSettings(listen=("127.0.0.1:0",))) as server:
        target = AttackTarget({PUBLIC: server.address}, {}, "", "")
        async with raw_connection(target, server.address) as opened:
            yield opened


async def test_a_whole_message_is_answered(connection: RawConnection) -> None:
    stream = await connection.headers(EMBED_TEXT)
    await connection.data(stream, message_prefix(len(MESSAGE)) + MESSAGE, end=True)

    await connection.all_answered(30.0)

    assert connection.answers == {"grpc-status 0": 1, "UNANSWERED": 0}


async def test_a_message_that_never_ends_is_not_answered(connection: RawConnection) -> None:
    stream = await connection.headers(EMBED_TEXT)
    sent = await connection.data(stream, message_prefix(len(MESSAGE)) + MESSAGE[:-1], end=False)

    await connection.all_answered(0.0)

    assert sent
    assert connection.answers == {"UNANSWERED": 1}


async def test_a_stream_that_was_reset_is_not_waited_for(connection: RawConnection) -> None:
    await connection.reset(await connection.headers(EMBED_TEXT))

    await connection.all_answered(30.0)

    assert connection.answers == {"UNANSWERED": 0}
