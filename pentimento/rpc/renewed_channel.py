"""A channel over TLS that goes on when its certificates are renewed: gRPC's own keeps what it was opened with."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc

from pentimento.rpc.credentials import called_files, channel_credentials
from pentimento.rpc.settings import RpcChannelSettings
from pentimento.rpc.watched_file import WatchedFile
from pentimento.settings import SettingsError

logger = logging.getLogger(__name__)

Connect = Callable[[grpc.ChannelCredentials | None], grpc.aio.Channel]


class RenewedChannel:
    """What a KitChannel asks of a channel. Calls that begin after the files have changed, looked at once a second at
    most, are made over another connection, by what they hold then; those that run go on over theirs. Files that do not
    hold what they should change nothing."""

    def __init__(self, settings: RpcChannelSettings, connect: Connect) -> None:
        """SettingsError when the files do not hold what they should."""
        self._settings = settings
        self._connect = connect
        self._watched = [WatchedFile(path) for path in called_files(settings).paths]
        self._credentials = channel_credentials(settings)
        # The last one is current. An older one may have calls for days, and costs little without: a renewal is rare.
        self._channels = [connect(self._credentials)]

    def unary_unary(self, *method: Any) -> Callable[..., Any]:
        """Return a callable of the method, as `grpc.aio.Channel` does."""
        return self._callable("unary_unary", method)

    def stream_unary(self, *method: Any) -> Callable[..., Any]:
        """Likewise."""
        return self._callable("stream_unary", method)

    def unary_stream(self, *method: Any) -> Callable[..., Any]:
        """Likewise."""
        return self._callable("unary_stream", method)

    def stream_stream(self, *method: Any) -> Callable[..., Any]:
        """Likewise."""
        return self._callable("stream_stream", method)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """Return the state of the connection that new calls go over."""
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Return once that is another than this."""
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
        # All are asked: each tells of a change once.
        if any([file.changed() for file in self._watched]):
            self._renew()
        return self._channels[-1]

    def _renew(self) -> None:
        try:
            credentials = channel_credentials(self._settings)
        except SettingsError as error:
            for file in self._watched:
                file.read_in_vain(error)
            logger.error("certificates not reloaded, those before are called with", extra={"problem": str(error)})
            return
        # The same for files that were written anew and hold the same.
        if credentials is not self._credentials:
            self._credentials = credentials
            self._channels.append(self._connect(credentials))
