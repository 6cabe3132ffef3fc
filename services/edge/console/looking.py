"""The suite's status, asked of each of its parts on behalf of a caller."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from grpc.aio import Channel

from pentimento.clients.controller import ControllerClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.suite_status import as_document, gathered
from pentimento.domain.errors import PermissionDenied, Unauthenticated
from services.edge.caller_channels import CallerChannels
from services.edge.parts import EdgeParts

T = TypeVar("T")
STATUS_TIMEOUT_S = 2.0


async def suite_document(parts: EdgeParts, token: str | None) -> dict[str, Any]:
    """Return the status as JSON values; a part that does not answer is named under `unanswered`. PermissionDenied and
    Unauthenticated where the caller may not ask the frontdoor."""
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
    return as_document(status)
