"""The parts that the handlers of the edge share, and whether clients should send requests to this process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pentimento.rpc.health import REASON_KEY
from services.edge.caller_channels import CallerChannels
from services.edge.cells import Frontdoors
from services.edge.console.history import HistoryReader
from services.edge.http.bodies import BodyBudget
from services.edge.settings import EdgeSettings, aliases_of

READY_TIMEOUT_S = 2.0


class Readiness:
    """Report readiness: the frontdoor serves, and this process is not stopping.

    `frontdoors` are separate connections, so that callers cannot delay the answer; one of several cells is enough."""

    def __init__(self, frontdoors: Sequence[grpc.aio.Channel]) -> None:
        self._frontdoors = frontdoors
        self._is_leaving = False
        self._asking: asyncio.Task[str | None] | None = None

    async def why_not(self) -> str | None:
        """Return None if clients should send requests, else the reason, "" if unknown. Concurrent callers share one
        call."""
        if self._is_leaving:
            return ""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(none_serves(self._frontdoors))
        reason = await asyncio.shield(self._asking)
        return "" if self._is_leaving else reason

    def leave(self) -> None:
        """Report from now on that clients should send no requests."""
        self._is_leaving = True

    async def close(self) -> None:
        """Close the connections to the frontdoors."""
        for frontdoor in self._frontdoors:
            await frontdoor.close()


async def none_serves(channels: Sequence[grpc.aio.Channel]) -> str | None:
    """Return None if any frontdoor accepts requests, else the first reason, "" if none gives one."""
    reasons = await asyncio.gather(*map(not_serving, channels))
    return None if None in reasons else next(filter(None, reasons), "")


async def not_serving(channel: grpc.aio.Channel) -> str | None:
    """Call grpc.health.v1; return None if the frontdoor accepts requests, else its reason, "" if it gives none."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    call = stub.Check(health_pb2.HealthCheckRequest(), timeout=READY_TIMEOUT_S)
    try:
        answer = await call
        metadata = await call.trailing_metadata()
    except grpc.aio.AioRpcError:
        return ""
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return next((str(value) for key, value in metadata or () if key == REASON_KEY), "")


@dataclass(frozen=True)
class EdgeParts:
    """Hold the shared parts of an edge process.

    `frontdoor`, `controller` and `gateway` call with the caller's token; the latter two are None without such a
    service. `bodies` bounds the memory of all request bodies."""

    settings: EdgeSettings
    frontdoor: Frontdoors
    bodies: BodyBudget
    readiness: Readiness
    history: HistoryReader
    controller: CallerChannels | None = None
    gateway: CallerChannels | None = None

    @cached_property
    def model_aliases(self) -> dict[str, str]:
        """Return models by alias."""
        return aliases_of(self.settings.model_aliases)
