"""Ask a process whether it serves, over grpc.health.v1."""

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

POLL_S = 0.05
# A channel that finds no socket must not wait the default second, and then two, before it tries again.
RECONNECT_MS = 100
OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
)


async def wait_until_serving(address: str) -> None:
    """Return once the process reports SERVING. There is no time limit, so the caller also watches the process."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        while not await is_serving(health):  # noqa: ASYNC110 - another process, nothing to await
            await asyncio.sleep(POLL_S)


async def is_serving(health: Any) -> bool:
    try:
        answer = await health.Check(health_pb2.HealthCheckRequest(), timeout=1.0)
    except grpc.aio.AioRpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
