"""Open channels: keepalive, message limits, token, TLS, deadlines and the request id on every call.

Deadlines: a unary call without `timeout` gets `DEFAULT_DEADLINE_S`. A call with a response stream gets none: it lives
until its caller stops it. Either is cut to the remaining time of the call in the current context;
`context.spawn_detached` starts work that must outlive that call.

The channel wraps gRPC's own instead of using its interceptors, which would put a task around every call.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc

from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.context import AUTHORIZATION, BEARER, REQUEST_ID, remaining_s
from pentimento.rpc.credentials import ClientCredentials
from pentimento.rpc.settings import RpcChannelSettings, is_unix
from pentimento.rpc.transport import channel_options
from pentimento.rpc.watched_file import KeptReading, text_of
from pentimento.settings import SettingsError
from pentimento.telemetry.tracing import outgoing, request_id

# Returns the authorization of a call that begins now; None without a token.
Authorization = Callable[[], str | None]
# Opens a connection with these credentials; None for no TLS.
Connect = Callable[[grpc.ChannelCredentials | None], grpc.aio.Channel]
Options = tuple[tuple[str, int | str], ...]
# Opens a channel to an address.
ChannelOpener = Callable[[str], grpc.aio.Channel]


# Processes that opened a channel: this one, and its ancestors by fork.
_PROCESSES: set[int] = set()
# A unary call without a timeout has this one.
DEFAULT_DEADLINE_S = 10.0
# gRPC shares the connections of channels with equal options.
OWN_CONNECTION = ("grpc.use_local_subchannel_pool", 1)


def open_channel(
    address: str,
    settings: RpcChannelSettings,
    token: str | None = None,
    *,
    own_connection: bool = False,
    credentials: ClientCredentials | None = None,
    user_agent: str = "",
) -> grpc.aio.Channel:
    """Return a channel to "unix:/path" or "host:port"; it connects with its first call. `token` replaces
    `service_token_file`; `own_connection`: no other channel shares its connection; `credentials`: those of the
    settings, for callers that open many channels; they survive files that are temporarily invalid; `user_agent`: begins
    the header of that name.

    SettingsError if the token or the certificates cannot be read, InvalidArgument for an invalid `token`, RuntimeError
    in a process forked from one with channels: it lacks gRPC's threads, and its first call would wait for ever.
    """
    authorization = authorization_of(token, settings.service_token_file)
    options: Options = (OWN_CONNECTION,) if own_connection else ()
    if user_agent:
        options += (("grpc.primary_user_agent", user_agent),)
    return _opened(address, settings, authorization, credentials, options)


def channel_opener(settings: RpcChannelSettings, token: str | None = None) -> ChannelOpener:
    """Return a function that opens channels during the life of a process, with the `token` as in `open_channel`. The
    files of token and certificates are read now, and again when they change: a channel that is opened while they are
    written uses their previous content.

    SettingsError if a file is invalid now.
    """
    authorization, credentials = authorization_of(token, settings.service_token_file), ClientCredentials(settings.tls)
    return lambda address: _opened(address, settings, authorization, credentials)


def _opened(
    address: str,
    settings: RpcChannelSettings,
    authorization: Authorization,
    credentials: ClientCredentials | None,
    own: Options = (),
) -> grpc.aio.Channel:
    options = channel_options() + own
    _PROCESSES.add(os.getpid())
    if len(_PROCESSES) > 1:
        raise RuntimeError("gRPC does not outlast a fork: start processes by 'spawn', or before the first channel")

    def connect(shown: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        if shown is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, shown, options=options)

    secured = not is_unix(address) and settings.tls.files.authorities is not None
    shown = credentials or ClientCredentials(settings.tls) if secured else None
    return KitChannel(connect, authorization, DEFAULT_DEADLINE_S, shown)


def authorization_of(token: str | None, path: Path | None = None) -> Authorization:
    """Return the authorization of the token, else of the token in a file, which is read again when it changes.
    InvalidArgument for characters that a header cannot carry, SettingsError if the file is invalid now."""
    if token is not None:
        if not (token.isascii() and token.isprintable()):
            raise InvalidArgument.of("token", "must be of printable ASCII characters")
        return lambda: BEARER + token
    if path is None:
        return lambda: None
    return KeptReading([path], lambda: read_token(path), "token not reloaded, the one before is shown on").current


def read_token(path: Path) -> str:
    token = text_of(path).strip()
    if not token or not token.isascii() or not token.isprintable():
        raise SettingsError(f"{path}: must hold one token of printable ASCII characters")
    return BEARER + token


class KitCall:
    """Call one method, of any of gRPC's four forms, with deadline and metadata."""

    def __init__(self, call: Callable[..., Any], authorization: Authorization, default_s: float | None) -> None:
        self._call = call
        self._authorization = authorization
        self._default_s = default_s

    def __call__(self, request: Any = None, timeout: float | None = None, metadata: Any = None, **options: Any) -> Any:
        return self._call(request, timeout=self._timeout(timeout), metadata=self._metadata(metadata), **options)

    def _timeout(self, given_s: float | None) -> float | None:
        wanted = self._default_s if given_s is None else given_s
        remaining = remaining_s()
        if wanted is None or remaining is None:
            return wanted if remaining is None else remaining
        return min(wanted, remaining)

    def _metadata(self, given: Any) -> grpc.aio.Metadata:
        metadata = grpc.aio.Metadata(*(given or ()))
        if (authorization := self._authorization()) is not None:
            metadata.add(AUTHORIZATION, authorization)
        if current := request_id.get():
            metadata.add(REQUEST_ID, current)
        for name, value in outgoing():
            metadata.add(name, value)
        return metadata


class KitChannel(grpc.aio.Channel):
    """Wrap gRPC's channels so that all calls pass through KitCall. gRPC's own keep their first credentials: calls that
    begin after a renewal of `credentials` use another connection, and running calls continue over theirs."""

    def __init__(
        self,
        connect: Connect,
        authorization: Authorization,
        default_s: float,
        credentials: ClientCredentials | None = None,
    ) -> None:
        self._connect = connect
        self._authorization = authorization
        self._default_s = default_s
        self._credentials = credentials
        self._shown = credentials.current() if credentials is not None else None
        # The last one is current. An older one may have calls for days, and costs little without calls: a renewal is
        # rare.
        self._channels = [connect(self._shown)]

    def unary_unary(self, *method: Any, **named: Any) -> Any:
        return self._call_of("unary_unary", self._default_s, method, named)

    def stream_unary(self, *method: Any, **named: Any) -> Any:
        return self._call_of("stream_unary", self._default_s, method, named)

    def unary_stream(self, *method: Any, **named: Any) -> Any:
        return self._call_of("unary_stream", None, method, named)

    def stream_stream(self, *method: Any, **named: Any) -> Any:
        return self._call_of("stream_stream", None, method, named)

    async def close(self, grace: float | None = None) -> None:
        await asyncio.gather(*(channel.close(grace) for channel in self._channels))

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.close()

    def _call_of(self, form: str, default_s: float | None, method: tuple[Any, ...], named: dict[str, Any]) -> KitCall:
        made: tuple[grpc.aio.Channel, Callable[..., Any]] | None = None

        def call(*given: Any, **options: Any) -> Any:
            nonlocal made
            current = self._current()
            if made is None or made[0] is not current:
                made = current, getattr(current, form)(*method, **named)
            return made[1](*given, **options)

        return KitCall(call, self._authorization, default_s)

    def _current(self) -> grpc.aio.Channel:
        shown = self._credentials.current() if self._credentials is not None else None
        if shown is not self._shown:
            self._shown = shown
            self._channels.append(self._connect(shown))
        return self._channels[-1]
