"""Keep a channel over TLS working when its certificates are renewed: gRPC's own keeps its first credentials."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from pentimento.rpc.credentials import ClientCredentials

Connect = Callable[[grpc.ChannelCredentials | None], grpc.aio.Channel]


class RenewedChannel:
    """Provide the channel methods that a KitChannel needs. Calls that begin after a renewal use another connection,
    with the new credentials; running calls continue over theirs."""

    def __init__(self, given: ClientCredentials, connect: Connect) -> None:
        self._given = given
        self._connect = connect
        self._credentials = given.current()
        # The last one is current. An older one may have calls for days, and costs little without calls: a renewal is
        # rare.
        self._channels = [connect(self._credentials)]

    def unary_unary(self, *method: Any) -> Callable[..., Any]:
        """Return a callable of the method, as `grpc.aio.Channel` does."""
        return self._callable("unary_unary", method)

    def stream_unary(self, *method: Any) -> Callable[..., Any]:
        """Return a callable of the method, as `grpc.aio.Channel` does."""
        return self._callable("stream_unary", method)

    def unary_stream(self, *method: Any) -> Callable[..., Any]:
        """Return a callable of the method, as `grpc.aio.Channel` does."""
        return self._callable("unary_stream", method)

    def stream_stream(self, *method: Any) -> Callable[..., Any]:
        """Return a callable of the method, as `grpc.aio.Channel` does."""
        return self._callable("stream_stream", method)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection for new calls."""
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return once that state differs from this one."""
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        """Return once it is connected."""
        await self._current().channel_ready()

    async def close(self, grace: float | None = None) -> None:
        """Close every connection, as `grpc.aio.Channel.close`."""
        await asyncio.gather(*(channel.close(grace) for channel in self._channels))

    def _callable(self, form: str, method: tuple[Any, ...]) -> Callable[..., Any]:
        made: tuple[grpc.aio.Channel, Callable[..., Any]] | None = None

        def call(*given: Any, **options: Any) -> Any:
            nonlocal made
            current = self._current()
            if made is None or made[0] is not current:
                made = current, getattr(current, form)(*method)
            return made[1](*given, **options)

        return call

    def _current(self) -> grpc.aio.Channel:
        credentials = self._given.current()
        if credentials is not self._credentials:
            self._credentials = credentials
            self._channels.append(self._connect(credentials))
        return self._channels[-1]
