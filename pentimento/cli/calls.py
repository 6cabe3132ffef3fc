"""Call the suite from a command: the frontdoor by the public client, the controller over a channel."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import grpc
from grpc.aio import Channel

from pentimento.cli.connection import (
    frontdoor_address,
    read_token,
    running_suite,
    state_dir_option,
    tls_files,
    tls_options,
    token_option,
)
from pentimento.cli.options import json_option
from pentimento.clients.retries import RetryPolicy
from pentimento.domain.errors import Unavailable
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import client_settings
from pentimento.sdk.blocking import Client
from pentimento.sdk.client import AsyncClient
from pentimento.supervisor.state import Endpoint

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


def controller_options(command: Command) -> Command:
    """Add `--json` and the options for the controller's address and the token."""
    address = click.option("--controller-address", help="host:port or unix:/path, instead of the suite's here")
    for option in (tls_options, token_option, address, state_dir_option):
        command = option(command)
    command = json_option(command)
    return command


def ask_controller(options: dict[str, Any], question: Callable[[Channel], Awaitable[T]]) -> T:
    """Return the answer of the controller of `controller_options`. Without a token, a suite that runs here is called
    with its own. Raises the controller's error; Unavailable names the address."""
    address, token = options["controller_address"], read_token(options["token"])
    settings = client_settings(**tls_files(options))
    if not address:
        suite = running_suite(options["state_dir"])
        address = suite.controller
        settings = replace(settings, service_token_file=own_token_file(suite, token))

    async def ask() -> T:
        async with open_channel(address, settings, token or None) as channel:
            return await question(channel)

    with naming(address):
        return asyncio.run(ask())


def own_token_file(suite: Endpoint, token: str) -> Path | None:
    """Return the token file of a suite, if it has one and the caller gave no token."""
    return Path(suite.service_token_file) if suite.service_token_file and not token else None


@contextmanager
def frontdoor_client(options: dict[str, Any], retries: RetryPolicy | None = None) -> Iterator[Client]:
    """Yield a client of the frontdoor of `connection_options`. Unavailable names its address."""
    address = frontdoor_address(options["address"], options["state_dir"])
    token = read_token(options["token"])
    with naming(address), Client(address, token=token, retries=retries, **tls_files(options)) as client:
        yield client


def ask_frontdoor(options: dict[str, Any], question: Callable[[AsyncClient], Awaitable[T]]) -> T:
    """Return the answer of the frontdoor of `connection_options`; an interrupt cancels the call. Unavailable names the
    address."""
    address = frontdoor_address(options["address"], options["state_dir"])

    async def ask() -> T:
        token = read_token(options["token"])
        async with AsyncClient(address, token=token, **tls_files(options)) as client:
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
