"""Call the suite from a command: the frontdoor by the public client, the controller over a channel."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc.aio import Channel

from pentimento.cli.connection import frontdoor_address, read_token, running_suite
from pentimento.clients.controller import CHUNK_BYTES
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.errors import Unavailable
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import client_settings
from pentimento.sdk.blocking import Client
from pentimento.sdk.client import AsyncClient
from pentimento.supervisor.state import Endpoint

T = TypeVar("T")
C = TypeVar("C")


def ask_channel(
    address: str, options: dict[str, Any], question: Callable[[Channel], Awaitable[T]], token_file: Path | None = None
) -> T:
    """Return the answer of the service at `address`, called with the token and TLS of the options. Raises its error;
    Unavailable names the address."""
    settings = replace(client_settings(options["tls_dir"]), service_token_file=token_file)
    token = read_token(options["token"])

    async def ask() -> T:
        async with open_channel(address, settings, token or None) as channel:
            return await question(channel)

    with naming(address):
        return asyncio.run(ask())


def ask_controller(options: dict[str, Any], client: Callable[[Channel], C], question: Callable[[C], Awaitable[T]]) -> T:
    """Return the controller's answer to a question by a `client`, or raise its error. Without a token, a suite that
    runs here is called with its own."""

    def ask(channel: Channel) -> Awaitable[T]:
        return question(client(channel))

    if options["controller_address"]:
        return ask_channel(options["controller_address"], options, ask)
    suite = running_suite(options["state_dir"])
    return ask_channel(suite.controller, options, ask, own_token_file(suite, read_token(options["token"])))


def own_token_file(suite: Endpoint, token: str) -> Path | None:
    """Return the token file of a suite, if it has one and the caller gave no token."""
    return Path(suite.service_token_file) if suite.service_token_file and not token else None


def chunks_of(file: Path) -> Iterator[bytes]:
    """Yield the bytes of a file that is uploaded."""
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk


@contextmanager
def frontdoor_client(options: dict[str, Any], retries: RetryPolicy | None = None) -> Iterator[Client]:
    """Yield a client of the frontdoor of `connection_options`. Unavailable names its address."""
    address = frontdoor_address(options)
    token = read_token(options["token"])
    with naming(address), Client(address, token=token, retries=retries, tls_dir=options["tls_dir"]) as client:
        yield client


def ask_frontdoor(options: dict[str, Any], question: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Return the answer of the frontdoor of `connection_options`; an interrupt cancels the call. Unavailable names the
    address."""
    address = frontdoor_address(options)

    async def ask() -> T:
        token = read_token(options["token"])
        async with AsyncClient(address, token=token, tls_dir=options["tls_dir"]) as client:
            return await question(client)

    with naming(address):
        return asyncio.run(ask())


@contextmanager
def naming(address: str) -> Iterator[None]:
    """Prefix the called address to the message of an Unavailable that gRPC itself raised."""
    try:
        yield
    except Unavailable as error:
        if error.reason != grpc.StatusCode.UNAVAILABLE.name:
            raise
        raise Unavailable(error.reason, f"{address}: {error.message}") from error
