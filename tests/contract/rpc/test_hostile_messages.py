"""Test messages that are missing, incomplete, compressed bombs or too many: refused early, bounded, harmless to
others."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from lab.fixtures.raw_http2 import framed, gzip_bomb, message_prefix, raw_connection
from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker
from pentimento.domain import errors
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcServerSettings, error_from_rpc, new_token, token_entry
from pentimento.rpc.access import declared_access
from pentimento.rpc.settings import ServerBounds
from tests.contract.rpc.scripted import EMBED_TEXT, EMBEDDER, WORKER, Scripted, channel_to, embed, serving, worker_stub
from tests.contract.rpc.test_roles import SERVICES

EMBED_IMAGE = f"/{EMBEDDER}/EmbedImage"
GET_INFO = f"/{EMBEDDER}/GetInfo"
WATCH_CREDITS = f"/{WORKER}/WatchCredits"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
HEALTH = "/grpc.health.v1.Health/Check"
MEBIBYTE = 1 << 20
OK, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = "0", "4", "8", "12", "16"
TOKENS = {"acme": new_token(), "other": new_token()}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens.toml"
    file.write_text("".join(token_entry(token, name, frozenset({Role.SERVICE})) for name, token in TOKENS.items()))
    return file


def on(socket_path: Path, token_file: Path | None = None, **settings: int) -> RpcServerSettings:
    return RpcServerSettings(listen=(f"unix:{socket_path}",), token_file=token_file, **settings)


async def ended(target: Scripted, path: str, data: bytes = b"", *, end: bool = False, **headers: str) -> dict[str, str]:
    """Send headers and `data`, and return how the call ended."""
    extra = tuple((key.replace("_", "-"), value) for key, value in headers.items() if key != "token")
    async with raw_connection(target.address) as peer:
        stream = await peer.headers(path, headers.get("token"), extra)
        await peer.data(stream, data, end=end, limit_s=1.0)
        return await peer.end_of(stream)


async def test_stranger_is_refused_before_a_message_is_read(token_file: Path, socket_path: Path) -> None:
    async with serving(on(socket_path, token_file)) as target:
        for path in (EMBED_TEXT, WATCH_CREDITS, REFLECTION):
            assert (await ended(target, path))["grpc-status"] == UNAUTHENTICATED


async def test_call_without_message_ends(socket_path: Path) -> None:
    async with serving(on(socket_path), ServerBounds(receive_timeout_s=0.1)) as target:
        for path in (GET_INFO, WATCH_CREDITS, REFLECTION, HEALTH):
            for data in (b"", message_prefix(60_000) + bytes(1000)):
                answer = await ended(target, path, data)
                assert (answer["grpc-status"], answer["grpc-message"]) == (
                    DEADLINE_EXCEEDED,
                    "the request message did not arrive in time",
                ), path


async def test_missing_compressed_or_too_large_message_is_refused(socket_path: Path) -> None:
    async with serving(on(socket_path)) as target, channel_to(target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_unary(EMBED_TEXT)(iter(()))
        compressed = await ended(target, EMBED_IMAGE, gzip_bomb(MEBIBYTE), end=True, grpc_encoding="gzip")
        large = await ended(target, EMBED_IMAGE, message_prefix(33 * MEBIBYTE))

    assert error_from_rpc(caught.value).reason == "NO_MESSAGE"
    assert compressed["grpc-status"] == UNIMPLEMENTED and "gzip" in compressed["grpc-message"]
    assert large["grpc-status"] == RESOURCE_EXHAUSTED


async def test_rpc_without_declared_size_takes_64_kib(socket_path: Path) -> None:
    largest = worker.WatchCreditsRequest(frontdoor_id="x" * (65_536 - 4))
    assert largest.ByteSize() == 65_536

    async with serving(on(socket_path)) as target, channel_to(target) as channel:
        async for _ in worker_stub(channel).WatchCredits(largest):
            pass
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker_stub(channel).WatchCredits(worker.WatchCreditsRequest(frontdoor_id="x" * 65_533)).read()

    refused = error_from_rpc(caught.value)
    assert refused.reason == "MESSAGE_TOO_LARGE"
    assert refused.metadata == {"size_bytes": "65537", "limit_bytes": "65536"}


# The limit of all other methods is 64 KiB.
LARGER_REQUESTS_MIB = {
    "image.v1.ImageService.Generate": 16,
    "image.v1.ImageService.Explain": 16,
    "image.v1.ImageService.Replay": 16,
    "image.v1.ImageService.Submit": 16,
    "worker.v1.UnetWorkerService.Execute": 20,
    "worker.v1.UnetWorkerService.PredictHalf": 20,
    "controlnet.v1.ControlNetService.StreamResiduals": 20,
    "embedder.v1.EmbedderService.EmbedText": 2,
    "embedder.v1.EmbedderService.EmbedImage": 32,
    "discriminator.v1.DiscriminatorService.Score": 32,
    "safety.v1.SafetyService.Check": 32,
    "controller.v1.ControllerService.Register": 1,
    "controller.v1.ControllerService.Report": 1,
    "models.v1.ModelRepositoryService.FindMissingFiles": 1,
    "models.v1.ModelRepositoryService.AddFile": 2,
    "models.v1.ModelRepositoryService.RegisterModel": 1,
    "models.v1.ModelRepositoryService.RegisterCascade": 1,
    "adapters.v1.AdapterRegistryService.AddLora": 2,
    "vectordb.v1.VectordbGatewayService.Lookup": 1,
    "vectordb.v1.VectordbGatewayService.ListNeighbours": 1,
    "vectordb.v1.VectordbGatewayService.Reserve": 1,
    "vectordb.v1.VectordbGatewayService.Commit": 1,
}


def test_contracts_say_which_rpcs_take_more() -> None:
    found = {
        f"{service.full_name}.{name}".removeprefix("pentimento.api."): access.max_request_bytes / MEBIBYTE
        for service in SERVICES
        for name, access in declared_access(service.full_name).items()
        if access.max_request_bytes != 64 * 1024
    }

    assert found == LARGER_REQUESTS_MIB


async def test_data_after_the_only_message_is_not_received(socket_path: Path) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    async def wait(request: object) -> str:
        entered.set()
        await release.wait()
        return ""

    async with serving(on(socket_path)) as target:
        target.embedder.embed = wait

        async with raw_connection(target.address) as peer:
            await peer.greeting()
            stream = await peer.headers(EMBED_TEXT)
            await peer.data(stream, framed(b""))
            await entered.wait()
            sent_bytes = await peer.data(stream, framed(bytes(MEBIBYTE)), limit_s=0.2)
        release.set()

    assert sent_bytes <= 64 * 1024


@asynccontextmanager
async def half_messages(address: str, count: int, token: str | None) -> AsyncIterator[dict[int, dict[str, str]]]:
    """Send `count` incomplete messages of 30 MiB; yield the statuses of ended calls by stream."""
    async with raw_connection(address) as peer:
        await peer.greeting()
        for stream in [await peer.headers(EMBED_IMAGE, token) for _ in range(count)]:
            await peer.data(stream, message_prefix(30 * MEBIBYTE) + bytes(1000), limit_s=0.1)
        yield peer.ended


@pytest.mark.slow
@pytest.mark.parametrize("with_tokens", [True, False], ids=["tokens", "open"])
async def test_half_messages_of_one_caller_leave_others_served(
    socket_path: Path, token_file: Path, with_tokens: bool
) -> None:
    """With space for two messages, one caller uses both places, and loses one when another caller arrives."""
    tokens = TOKENS if with_tokens else dict.fromkeys(TOKENS)
    settings = on(socket_path, token_file if with_tokens else None)
    async with (
        serving(settings, ServerBounds(max_receiving_bytes=MEBIBYTE)) as target,
        channel_to(target, token=tokens["other"]) as channel,
        half_messages(target.address, 8, tokens["acme"]) as found,
    ):
        # The halves may arrive after the first call, and end later.
        while not found:
            assert await embed(channel, "next") == "next"

    assert {one["grpc-status"] for one in found.values()} == {RESOURCE_EXHAUSTED}


async def test_stream_of_requests_keeps_a_place_until_it_ends(socket_path: Path) -> None:
    """Allow space for one message."""
    async with serving(on(socket_path), ServerBounds(max_receiving_bytes=MEBIBYTE)) as target:
        ends = []
        for _ in range(2):
            async with raw_connection(target.address) as peer:
                first = await peer.headers(REFLECTION)
                second = await peer.headers(REFLECTION)
                ends.append(await peer.end_of(second))
                await peer.data(first, framed(b""), end=True)
                ends.append(await peer.end_of(first))

    assert [one["grpc-status"] for one in ends] == [RESOURCE_EXHAUSTED, OK, RESOURCE_EXHAUSTED, OK]


async def test_one_tenant_takes_no_more_than_half_of_the_calls(socket_path: Path, token_file: Path) -> None:
    entered, release = asyncio.Semaphore(0), asyncio.Event()

    async def wait(request: object) -> str:
        entered.release()
        await release.wait()
        return "served"

    async with (
        serving(on(socket_path, token_file, max_concurrent_calls=4)) as target,
        channel_to(target, token=TOKENS["acme"]) as greedy,
        channel_to(target, token=TOKENS["other"]) as modest,
    ):
        target.embedder.embed = wait
        running = [asyncio.create_task(embed(greedy)) for _ in range(2)]
        for _ in running:
            await entered.acquire()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(greedy)
        others = asyncio.create_task(embed(modest))
        await entered.acquire()
        release.set()
        served = await asyncio.gather(*running, others)

    refused = error_from_rpc(caught.value)
    assert isinstance(refused, errors.ResourceExhausted)
    assert (refused.reason, refused.retry_after_ms) == ("TOO_MANY_CALLS", 250)
    assert served == ["served"] * 3


@pytest.mark.slow
async def test_burst_ends_with_answers_only(socket_path: Path) -> None:
    """Make three times as many calls as a connection runs together, on two connections, before the first answer."""
    async with serving(on(socket_path)) as target, channel_to(target) as one, channel_to(target) as two:
        calls = [embed(channel, "x", timeout=240.0) for channel in (one, two) for _ in range(1500)]
        answers = await asyncio.gather(*calls, return_exceptions=True)

    assert set(answers) == {"x"}


@pytest.mark.slow
async def test_calls_that_stay_open_leave_later_ones_waiting(socket_path: Path) -> None:
    """The 1,025th call of a connection waits in its client; none is reset."""
    entered, full, release = itertools.count(1), asyncio.Event(), asyncio.Event()

    async def stay(request: object) -> AsyncIterator[worker.WatchCreditsResponse]:
        if next(entered) == 1024:
            full.set()
        await release.wait()
        yield worker.WatchCreditsResponse()

    async def watch(channel: grpc.aio.Channel) -> int:
        return len([one async for one in worker_stub(channel).WatchCredits(worker.WatchCreditsRequest(), timeout=240)])

    async with serving(on(socket_path)) as target, channel_to(target) as channel:
        target.worker.credits = stay
        watching = [asyncio.create_task(watch(channel)) for _ in range(1100)]
        await full.wait()
        release.set()
        counts = await asyncio.gather(*watching)

    assert counts == [1] * 1100


async def test_connection_opens_1024_calls_with_or_without_tenants(token_file: Path) -> None:
    for settings in (RpcServerSettings(token_file=token_file), RpcServerSettings()):
        async with serving(settings) as target, raw_connection(target.address) as peer:
            await peer.greeting()
            assert peer.max_concurrent_streams == 1024


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with serving(RpcServerSettings(), ServerBounds(max_connections=2)) as target, channel_to(target) as channel:
        await embed(channel)
        async with raw_connection(target.address) as second, raw_connection(target.address) as third:
            await second.greeting()
            await third.closing()

            assert (second.closed, third.closed) == (False, True)


async def test_calls_without_a_token_are_few_for_each_peer(token_file: Path) -> None:
    async with serving(RpcServerSettings(token_file=token_file)) as target, raw_connection(target.address) as peer:
        streams = [await peer.headers("/grpc.health.v1.Health/Watch") for _ in range(65)]
        for stream in streams:
            await peer.data(stream, framed(b""), end=True, limit_s=1.0)
        await peer.end_of(streams[-1])
        refused = dict(peer.ended)

    assert [one["grpc-status"] for one in refused.values()] == [RESOURCE_EXHAUSTED]
