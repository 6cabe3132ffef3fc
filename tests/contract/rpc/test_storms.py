"""Test that a tenant's storm of calls waits in its own queue: calls of other tenants start immediately."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from pentimento.api.image.v1 import image_service_pb2 as pb
from pentimento.api.image.v1.image_service_pb2_grpc import (
    ImageServiceServicer,
    ImageServiceStub,
    add_ImageServiceServicer_to_server,
)
from pentimento.domain.tenants import Role
from pentimento.rpc import RpcChannelSettings, RpcServer, RpcServerSettings, current_caller, new_token, open_channel
from pentimento.rpc import token_entry as entry
from pentimento.rpc.call_limits import BURST_CALLS

IMAGE_SERVICE = "pentimento.api.image.v1.ImageService"
TOKENS = {"mallory": new_token(), "alice": new_token()}
STORM = 3 * BURST_CALLS
GUARD_S = 100.0


@dataclass
class Counted(ImageServiceServicer):
    """Count the received calls by tenant."""

    begun: Counter[str] = field(default_factory=Counter)

    async def ListModels(self, request: pb.ListModelsRequest, context: object) -> pb.ListModelsResponse:
        self.begun[current_caller().tenant] += 1
        return pb.ListModelsResponse()


@asynccontextmanager
async def storm(socket_path: Path, *, with_tokens: bool, token: str | None) -> AsyncIterator[tuple[Counted, RpcServer]]:
    """Start a server after a storm: every call of the storm that may begin within the next hour has begun."""
    file = socket_path.parent / "tokens.toml"
    file.write_text("".join(entry(token, name, frozenset({Role.USER})) for name, token in TOKENS.items()))
    settings = RpcServerSettings(
        listen=(f"unix:{socket_path}",), token_file=file if with_tokens else None, tenant_calls_per_s=1 / 3600
    )
    servicer, server = Counted(), RpcServer(settings, "storm")
    server.add(add_ImageServiceServicer_to_server, servicer, IMAGE_SERVICE)
    await server.start()
    try:
        async with open_channel(settings.listen[0], RpcChannelSettings(), token) as channel:
            calls = [asyncio.ensure_future(listed(channel)) for _ in range(STORM)]
            await enough(calls, BURST_CALLS if with_tokens else STORM)
            yield servicer, server
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
    finally:
        await server.stop()


async def listed(channel: grpc.aio.Channel) -> str:
    try:
        await ImageServiceStub(channel).ListModels(pb.ListModelsRequest(), timeout=600.0)
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return "OK"


async def enough(calls: Sequence["asyncio.Future[str]"], count: int) -> None:
    while sum(call.done() for call in calls) < count:
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=0.05)


async def test_another_tenants_call_is_served_while_a_storm_waits(socket_path: Path) -> None:
    async with storm(socket_path, with_tokens=True, token=TOKENS["mallory"]) as (servicer, server):
        async with open_channel(server.bound_addresses[0], RpcChannelSettings(), TOKENS["alice"]) as channel:
            answers = [await listed(channel) for _ in range(3)]

        assert answers == ["OK"] * 3
        assert servicer.begun == {"mallory": BURST_CALLS, "alice": 3}


async def test_refusals_of_strangers_wait_in_a_line_of_their_own(socket_path: Path) -> None:
    async with storm(socket_path, with_tokens=True, token=new_token()) as (servicer, server):
        async with open_channel(server.bound_addresses[0], RpcChannelSettings(), TOKENS["alice"]) as channel:
            answer = await listed(channel)

        assert answer == "OK" and servicer.begun == {"alice": 1}


async def test_without_tokens_a_storm_is_not_limited(socket_path: Path) -> None:
    async with storm(socket_path, with_tokens=False, token=None) as (servicer, _):
        assert servicer.begun.total() == STORM


async def test_waiting_calls_are_refused_when_the_server_stops(socket_path: Path) -> None:
    async with storm(socket_path, with_tokens=True, token=TOKENS["mallory"]) as (_, server):
        waiting = open_channel(server.bound_addresses[0], RpcChannelSettings(), TOKENS["mallory"])
        async with waiting as channel:
            call = asyncio.ensure_future(listed(channel))
            # Calls that the server has not accepted before its stop get no reason.
            while len(server._pipeline._unary) < STORM - BURST_CALLS + 1:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.01)
            assert not call.done()

            await server.stop()

            assert await call == "UNAVAILABLE"


async def test_a_stop_does_not_wait_for_calls_that_would_be_refused_in_their_turn(socket_path: Path) -> None:
    async with storm(socket_path, with_tokens=True, token=TOKENS["mallory"]) as (servicer, server):
        async with asyncio.timeout(GUARD_S):
            await server.stop(100 * GUARD_S)

        assert servicer.begun == {"mallory": BURST_CALLS}
