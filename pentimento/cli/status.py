"""`pentimento status`: the fleet as controller, frontdoor and gateway see it."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click
from grpc.aio import Channel
from rich.console import Console, Group
from rich.live import Live

from pentimento.cli.connection import read_token, running_suite, state_dir_option, token_option
from pentimento.cli.status_view import SuiteStatus, as_document, render
from pentimento.clients.controller import ControllerClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import RpcChannelSettings

T = TypeVar("T")
LOOK_S = 1.0
CALL_TIMEOUT_S = 2.0


@click.command()
@click.option("--watch", is_flag=True, help="stay, and look again every second")
@click.option("--json", "as_json", is_flag=True, help="one JSON document")
@click.option("--controller-address", help="host:port or unix:/path, instead of the suite's here")
@click.option("--frontdoor-address", help="likewise")
@click.option("--gateway-address", help="likewise")
@token_option
@state_dir_option
def status(watch: bool, as_json: bool, token: str, state_dir: Path, **addresses: str | None) -> None:
    """Shows who is up, the models they hold, queues, running work, the cache and the plan in force."""
    places = find_places(addresses, read_token(token), state_dir)
    if as_json:
        click.echo(json.dumps(as_document(asyncio.run(look(places))), indent=1))
    elif watch:
        asyncio.run(keep_looking(places))
    else:
        Console().print(Group(*render(asyncio.run(look(places)))))


@dataclasses.dataclass(frozen=True)
class Places:
    controller: str
    frontdoor: str
    gateway: str
    token: str | None
    token_file: Path | None


def find_places(addresses: dict[str, str | None], token: str, state_dir: Path) -> Places:
    given = {name.removesuffix("_address"): address for name, address in addresses.items() if address}
    if len(given) < len(addresses):
        suite = running_suite(state_dir)
        found = {"controller": suite.controller, "frontdoor": suite.frontdoor, "gateway": suite.gateway}
        token_file = Path(suite.service_token_file) if suite.service_token_file and not token else None
        return Places(**{**found, **given}, token=token or None, token_file=token_file)
    return Places(**given, token=token or None, token_file=None)


async def look(places: Places) -> SuiteStatus:
    """Asks the three at once; one that does not answer leaves its part out and its reason in."""
    settings = RpcChannelSettings(service_token_file=places.token_file)

    async def ask(address: str, question: Callable[[Channel], Awaitable[T]]) -> T:
        async with open_channel(address, settings, places.token) as channel:
            return await question(channel)

    async def nothing() -> None:
        """What a suite without a cache says of it."""

    asked = (
        ask(places.controller, lambda channel: ControllerClient(channel).fleet(CALL_TIMEOUT_S)),
        ask(places.frontdoor, lambda channel: FrontdoorClient(channel).status(CALL_TIMEOUT_S)),
        ask(places.gateway, lambda channel: GatewayClient(channel).statistics(CALL_TIMEOUT_S))
        if places.gateway
        else nothing(),
    )
    return SuiteStatus.of(*await asyncio.gather(*asked, return_exceptions=True))


async def keep_looking(places: Places) -> None:
    with Live(auto_refresh=False, screen=False) as view:
        while True:
            started = time.monotonic()
            view.update(Group(*render(await look(places))), refresh=True)
            await asyncio.sleep(max(LOOK_S - (time.monotonic() - started), 0.0))
