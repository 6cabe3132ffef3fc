"""Whether clients should send requests to this process."""

import asyncio
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

READY_TIMEOUT_S = 2.0


class Readiness:
    """Whether clients should send requests here: the frontdoor serves, and this process is not about to stop.

    `frontdoor` is a connection for this alone, so that no number of callers delays the answer."""

    def __init__(self, frontdoor: grpc.aio.Channel) -> None:
        self._frontdoor = frontdoor
        self._is_leaving = False
        self._asking: asyncio.Task[bool] | None = None

    async def holds(self) -> bool:
        """Ask the frontdoor. Those who ask at the same time share one call."""
        if self._is_leaving:
            return False
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(is_serving(self._frontdoor))
        return await asyncio.shield(self._asking) and not self._is_leaving

    def leave(self) -> None:
        """Say no from now on; changes state."""
        self._is_leaving = True

    async def close(self) -> None:
        """Close the connection."""
        await self._frontdoor.close()


async def is_serving(channel: grpc.aio.Channel) -> bool:
    """Ask grpc.health.v1."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=READY_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
