"""Call the frontdoor's service for operators; `image` is the public API."""

import grpc.aio

from pentimento.api.frontdoor.v1 import frontdoor_service_pb2 as pb
from pentimento.api.frontdoor.v1.frontdoor_service_pb2_grpc import FrontdoorServiceStub
from pentimento.clients.errors import answer_of


class FrontdoorClient:
    """Call a frontdoor's service for operators and the CLI."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = FrontdoorServiceStub(channel)

    async def status(self, timeout_s: float | None = None) -> pb.GetStatusResponse:
        """Return the frontdoor's status message."""
        return await answer_of(self._stub.GetStatus, pb.GetStatusRequest(), timeout_s)
