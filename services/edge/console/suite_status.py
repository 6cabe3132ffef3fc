"""The suite's status, read from each of its services on behalf of a caller."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from grpc.aio import Channel

from pentimento.clients.controller import ControllerClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.suite_status import SuiteStatus, as_document, gathered
from pentimento.domain.errors import PermissionDenied, Unauthenticated
from services.edge.caller_channels import CallerChannels
from services.edge.history.samples import sample_of
from services.edge.parts import EdgeParts

T = TypeVar("T")
STATUS_TIMEOUT_S = 2.0
# Time between a page's own samples, if this process stores none.
UNKEPT_MS = 2000


async def suite_document(parts: EdgeParts, token: str | None) -> dict[str, Any]:
    """Return the status as JSON values; `unanswered` names the services that do not answer. PermissionDenied or
    Unauthenticated if the caller may not read it."""
    return as_document(await suite_status(parts, token))


async def history_document(parts: EdgeParts, token: str | None, after_ms: int) -> bytes:
    """Return the samples after a time as JSON; only a present one if this process cannot sample by itself. Raises like
    `suite_document`, as the frontdoor decides."""
    history = parts.history
    if history is not None and history.reads:
        async with parts.frontdoor.channel(token) as channel:
            await FrontdoorClient(channel).status(STATUS_TIMEOUT_S)
        return b'{"interval_ms":%d,"samples":%s}' % (round(history.interval_s * 1000), history.ring.after(after_ms))
    sample = sample_of(await suite_status(parts, token), time.time_ns() // 1_000_000)
    return b'{"interval_ms":%d,"samples":%s}' % (UNKEPT_MS, json.dumps([sample] if sample else []).encode())


async def suite_status(parts: EdgeParts, token: str | None) -> SuiteStatus:
    """Return the status. Raises like `suite_document`."""
    refused: list[PermissionDenied | Unauthenticated] = []

    async def ask(channels: CallerChannels | None, question: Callable[[Channel], Awaitable[T]]) -> T | None:
        if channels is None:
            return None
        try:
            async with channels.channel(token) as channel:
                return await question(channel)
        except (PermissionDenied, Unauthenticated) as error:
            refused.append(error)
            raise

    status = await gathered(
        ask(parts.controller, lambda channel: ControllerClient(channel).fleet(STATUS_TIMEOUT_S)),
        ask(parts.frontdoor, lambda channel: FrontdoorClient(channel).status(STATUS_TIMEOUT_S)),
        ask(parts.gateway, lambda channel: GatewayClient(channel).statistics(STATUS_TIMEOUT_S)),
    )
    if refused:
        raise refused[0]
    return status
