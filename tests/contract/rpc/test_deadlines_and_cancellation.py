"""Test deadlines of calls: their end reaches the handler and the calls that it made.

HTTP/2 carries a timeout in three digits, rounded up: the received value may exceed the sent one by a few per cent.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from pentimento.api.worker.v1 import unet_worker_service_pb2 as worker
from pentimento.domain import errors
from pentimento.rpc import (
    RpcServerSettings,
    current_request_id,
    error_from_rpc,
    remaining_s,
    server,
    spawn_detached,
)
from pentimento.rpc.settings import ServerBounds
from tests.contract.rpc.scripted import Scripted, channel_to, embed, scripted, serving, worker_stub


@pytest.fixture
async def downstream(socket_path: Path) -> AsyncIterator[Scripted]:
    """Start a second server, called by the first."""
    async with serving(RpcServerSettings(listen=(f"unix:{socket_path}.down",))) as made:
        yield made


class Handler:
    """Wait for ever, and record a cancellation."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def __call__(self, request: object) -> str:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ""


async def tell_remaining(request: object) -> str:
    return str(remaining_s())


async def tell_remaining_of_stream(request: object) -> AsyncIterator[worker.WatchCreditsResponse]:
    yield worker.WatchCreditsResponse(worker_id=str(remaining_s()))


async def first_credits(channel: grpc.aio.Channel) -> str:
    return str((await worker_stub(channel).WatchCredits(worker.WatchCreditsRequest()).read()).worker_id)


async def test_deadline_is_callers_else_channels_and_none_for_streams(
    target: Scripted, channel: grpc.aio.Channel
) -> None:
    target.embedder.embed, target.worker.credits = tell_remaining, tell_remaining_of_stream

    assert 0 < float(await embed(channel)) < 11
    assert 11 < float(await embed(channel, timeout=100)) < 110
    assert await first_credits(channel) == "None"


async def test_remaining_time_and_request_id_travel_downstream(
    target: Scripted, downstream: Scripted, channel: grpc.aio.Channel
) -> None:
    downstream.embedder.embed, downstream.worker.credits = tell_remaining, tell_remaining_of_stream
    async with channel_to(downstream) as below:
        target.embedder.embed = lambda request: embed(below, timeout=1000)
        assert 0 < float(await embed(channel, timeout=20)) < 22
        target.embedder.embed = lambda request: first_credits(below)
        assert 0 < float(await embed(channel, timeout=20)) < 22
        target.embedder.embed = lambda request: spawn_detached(embed(below, timeout=1000), "outlives the call")
        assert 22 < float(await embed(channel, timeout=20)) < 1100

        downstream.embedder.embed = tell_id
        target.embedder.embed = lambda request: embed(below)
        assert await embed(channel, metadata=(("x-request-id", "req-1"),)) == "req-1"


async def tell_id(request: object) -> str:
    return current_request_id()


async def test_request_id_that_could_forge_a_log_line_is_replaced(target: Scripted, channel: grpc.aio.Channel) -> None:
    target.embedder.embed = tell_id

    for offered in ("a b", "x" * 65, "{}", "id=1;level=error"):
        assert await embed(channel, metadata=(("x-request-id", offered),)) not in ("", offered)


async def test_call_without_deadline_takes_the_servers(socket_path: Path) -> None:
    settings = RpcServerSettings(listen=(f"unix:{socket_path}",))
    async with (
        serving(settings, ServerBounds(unary_deadline_s=0.05)) as target,
        grpc.aio.insecure_channel(target.address) as channel,
    ):
        handler = target.embedder.embed = Handler()
        while not handler.entered.is_set():  # a busy server may get there too late
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await embed(channel)

    assert type(error_from_rpc(caught.value)) is errors.DeadlineExceeded
    assert handler.cancelled.is_set()


async def test_passed_deadline_cancels_the_handler(target: Scripted, channel: grpc.aio.Channel) -> None:
    handler = target.embedder.embed = Handler()

    while not handler.entered.is_set():  # a busy server may get there too late
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await embed(channel, timeout=0.2)

    assert type(error_from_rpc(caught.value)) is errors.DeadlineExceeded
    await handler.cancelled.wait()


async def test_cancel_reaches_through_two_servers(
    target: Scripted, downstream: Scripted, channel: grpc.aio.Channel
) -> None:
    handler = downstream.embedder.embed = Handler()
    async with channel_to(downstream) as below:
        target.embedder.embed = lambda request: embed(below)
        call = asyncio.create_task(embed(channel))
        await handler.entered.wait()

        call.cancel()

        await handler.cancelled.wait()


async def test_client_that_leaves_ends_its_stream(target: Scripted) -> None:
    ended = asyncio.Event()

    async def credits(request: object) -> AsyncIterator[worker.WatchCreditsResponse]:
        try:
            yield worker.WatchCreditsResponse()
            await asyncio.Event().wait()
        finally:
            ended.set()

    target.worker.credits = credits
    async with channel_to(target) as channel:
        call = worker_stub(channel).WatchCredits(worker.WatchCreditsRequest())
        await call.read()

    await ended.wait()


async def test_passed_deadline_starts_no_handler(socket_path: Path) -> None:
    made = scripted(RpcServerSettings(listen=(f"unix:{socket_path}",)))
    handler = made.embedder.embed = Handler()
    await made.server.start()
    async with channel_to(made) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await embed(channel, timeout=-1)
    await made.server.stop()

    assert not handler.entered.is_set()


async def test_stop_lets_stream_send_its_last_message(
    target: Scripted, channel: grpc.aio.Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine may need this long.
    monkeypatch.setattr(server, "STREAM_GRACE_S", 60.0)
    stopping = asyncio.Event()

    async def credits(request: object) -> AsyncIterator[worker.WatchCreditsResponse]:
        yield worker.WatchCreditsResponse(worker_id="first")
        await stopping.wait()
        yield worker.WatchCreditsResponse(worker_id="last")

    target.worker.credits = credits
    call = worker_stub(channel).WatchCredits(worker.WatchCreditsRequest())
    told = [(await call.read()).worker_id]
    stop = asyncio.create_task(target.server.stop(20.0))
    await asyncio.sleep(0)
    stopping.set()

    told.append((await call.read()).worker_id)
    end = await call.read()
    await stop

    assert told == ["first", "last"]
    assert end is grpc.aio.EOF
