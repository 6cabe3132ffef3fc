"""Test that calls without an answer leave almost nothing to the garbage collector, which would delay other calls."""

import asyncio
import gc
from pathlib import Path

import grpc
import pytest

from pentimento.api.embedder.v1 import embedder_service_pb2 as embedder
from pentimento.domain import errors
from pentimento.rpc import RpcServerSettings
from tests.contract.rpc.scripted import Scripted, channel_to, embed, serving
from tests.support.waiting import until

CALLS = 20
# gRPC's server leaves five objects per call; an exception that refers to itself would leave forty to fifty.
OBJECTS_OF_A_CALL = 10


async def refuse(request: embedder.EmbedTextRequest) -> str:
    raise errors.ResourceExhausted("BUSY", "come back later")


async def wait(request: embedder.EmbedTextRequest) -> str:
    await asyncio.Event().wait()
    return ""


async def is_missing(request: embedder.EmbedTextRequest) -> str:
    raise NotImplementedError


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", [refuse, wait, is_missing])
async def test_call_without_answer_leaves_few_objects(behaviour: object, socket_path: Path) -> None:
    async with serving(RpcServerSettings(listen=(f"unix:{socket_path}",))) as target:
        target.embedder.embed = behaviour  # type: ignore[assignment]
        await refused_calls(target)
        gc.collect()
        gc.disable()
        try:
            # Take the least of three counts: objects of earlier tests may be collected during one.
            left_count = min([await left_by_calls(target) for _ in range(3)])
        finally:
            gc.enable()

    assert left_count < CALLS * OBJECTS_OF_A_CALL


async def left_by_calls(target: Scripted) -> int:
    await refused_calls(target)
    return gc.collect()


async def refused_calls(target: Scripted) -> None:
    """Return once the server, too, has ended the calls."""
    async with channel_to(target) as channel:
        for _ in range(CALLS):
            with pytest.raises(grpc.aio.AioRpcError):
                await embed(channel, "x", timeout=0.05 if target.embedder.embed is wait else 60.0)
    await until(lambda: not target.server._pipeline.activity[1])
