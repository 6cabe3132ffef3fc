"""Test messages and calls beyond the limits: the error names the limit, and the next valid call succeeds."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder
from pentimento.domain import errors
from pentimento.rpc import RpcServerSettings, error_from_rpc, transport
from pentimento.rpc.settings import MEBIBYTE, ServerBounds
from tests.contract.rpc.scripted import channel_to, embed, embedder_stub, serving

SMALL = MEBIBYTE


async def refused_size(channel: grpc.aio.Channel, image: bytes) -> errors.PentimentoError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await embedder_stub(channel).EmbedImage(embedder.EmbedImageRequest(images=[image]))
    return error_from_rpc(caught.value)


@pytest.mark.parametrize(
    ("server_limit", "channel_limit"), [(SMALL, 8 * SMALL), (8 * SMALL, SMALL)], ids=["server's", "channel's"]
)
async def test_an_oversized_request_names_the_limit_and_the_next_succeeds(
    socket_path: Path, server_limit: int, channel_limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", channel_limit)
    server, bounds = RpcServerSettings(listen=(f"unix:{socket_path}",)), ServerBounds(max_message_bytes=server_limit)
    async with serving(server, bounds) as target, channel_to(target) as channel:
        refused = await refused_size(channel, bytes(2 * SMALL))
        after = await embed(channel, "next")

    assert (type(refused), refused.reason) == (errors.ResourceExhausted, "MESSAGE_TOO_LARGE")
    assert f"the limit of {SMALL} bytes" in refused.message
    assert refused.metadata["limit_bytes"] == str(SMALL)
    assert after == "next"


async def test_an_oversized_answer_names_the_limit_and_the_next_succeeds(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", SMALL)
    server = RpcServerSettings(listen=(f"unix:{socket_path}",))
    async with serving(server) as target, channel_to(target) as channel:

        async def huge(request: object) -> str:
            return "x" * (2 * SMALL)

        small = target.embedder.embed
        target.embedder.embed = huge
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel)
        target.embedder.embed = small
        after = await embed(channel, "next")

    assert error_from_rpc(caught.value).metadata["limit_bytes"] == str(SMALL)
    assert after == "next"


async def test_calls_beyond_the_limit_get_a_retry_time(socket_path: Path) -> None:
    settings = RpcServerSettings(listen=(f"unix:{socket_path}",), max_concurrent_calls=2)
    entered, release = asyncio.Semaphore(0), asyncio.Event()

    async def wait(request: object) -> str:
        entered.release()
        await release.wait()
        return "served"

    async with serving(settings) as target, channel_to(target) as channel:
        target.embedder.embed = wait
        running = [asyncio.create_task(embed(channel)) for _ in range(2)]
        for _ in running:
            await entered.acquire()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel)
        health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        release.set()
        served = await asyncio.gather(*running)
        after = await embed(channel)

    refused = error_from_rpc(caught.value)
    assert (refused.reason, refused.retry_after_ms) == ("TOO_MANY_CALLS", 250)
    assert "max_concurrent_calls = 2" in refused.message
    assert [*served, after] == ["served"] * 3
    assert health.status == health_pb2.HealthCheckResponse.SERVING
