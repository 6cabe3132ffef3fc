"""Call another process for components that it holds."""

from contextlib import aclosing

import grpc.aio

from pentimento.api.components.v1 import component_service_pb2 as pb
from pentimento.api.components.v1.component_service_pb2_grpc import ComponentServiceStub
from pentimento.clients.calls import stream
from pentimento.domain.errors import Aborted


class ComponentClient:
    """Fetch ranges of components from one replica."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = ComponentServiceStub(channel)

    async def fetch(self, digest: str, offset: int, size: int, timeout_s: float) -> list[bytes]:
        """Return `size` bytes of a component from `offset` on, in pieces; the caller verifies them. Raises Aborted for
        another number of bytes, NotFound for a component that the replica does not hold, and the errors of calls."""
        request = pb.FetchComponentRequest(digest=digest, offset_bytes=offset, size_bytes=size)
        pieces: list[bytes] = []
        left = size
        messages = stream(lambda: self._stub.FetchComponent(request, timeout=timeout_s), lambda message: message)
        async with aclosing(messages) as arriving:
            async for message in arriving:
                pieces.append(message.data)
                left -= len(message.data)
                if left < 0:
                    break
        if left:
            raise Aborted("STALE_FRAME", f"the replica sent another number of bytes of a component than {size}")
        return pieces
