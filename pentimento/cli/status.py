"""`pentimento status`: the fleet as controller, frontdoor and gateway see it."""

import asyncio
import dataclasses
import json
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

import click
from grpc.aio import Channel
from rich.console import Console, Group
from rich.live import Live

from pentimento.api.frontdoor.v1.frontdoor_service_pb2 import GetStatusResponse as FrontdoorStatus
from pentimento.cli.allocation_samples import AllocationSample, sample_line
from pentimento.cli.calls import naming, own_token_file
from pentimento.cli.connection import read_token, running_suite, state_dir_option, tls_option, token_option
from pentimento.cli.options import json_option
from pentimento.cli.status_view import LastTold, movement, render, sample_of
from pentimento.clients.controller import ControllerClient
from pentimento.clients.frontdoor import FrontdoorClient
from pentimento.clients.gateway import GatewayClient
from pentimento.clients.suite_status import SuiteStatus, as_document, gathered
from pentimento.domain.errors import InvalidArgument
from pentimento.rpc.channel import ChannelOpener, channel_opener
from pentimento.rpc.settings import RpcChannelSettings, client_settings
from pentimento.supervisor.state import StateDirectory

T = TypeVar("T")
FILE = click.Path(dir_okay=False, path_type=Path)
LOOK_S = 1.0
CALL_TIMEOUT_S = 2.0
SHOWN_LOOKS = 60
NOBODY_ANSWERED = 1
PLACES = ("controller", "frontdoor", "gateway")


@click.command()
@click.option("--watch", is_flag=True, help="refresh every second")
@click.option(
    "--record",
    type=click.Path(dir_okay=False, path_type=Path),
    help="with --watch: a line per refresh, for `bench allocation`",
)
@json_option
@click.option("--controller-address", help="host:port or unix:/path, instead of the local suite's")
@click.option("--frontdoor-address", help="likewise")
@click.option("--gateway-address", help="likewise")
@tls_option
@token_option
@state_dir_option
def status(watch: bool, record: Path | None, as_json: bool, token: str, state_dir: Path, **options: Any) -> None:
    """Show replicas, their models, queues, running work, the cache and the plan. The exit code is 1 if no process
    answers. With --watch --json each refresh is a line."""
    if record is not None and not watch:
        raise click.UsageError("--record needs --watch")
    given = {name: address for name in PLACES if (address := options[f"{name}_address"])}
    addresses, opening = find_places(given, read_token(token), client_settings(options["tls_dir"]), state_dir)
    if watch:
        asyncio.run(keep_looking(addresses, opening, record, as_json=as_json))
        return
    found = asyncio.run(look(addresses, opening))
    if as_json:
        click.echo(line_of(found))
    else:
        Console().print(Group(*render(found)))
    if not found.answered:
        raise click.exceptions.Exit(NOBODY_ANSWERED)


def find_places(
    given: dict[str, str], token: str, channels: RpcChannelSettings, state_dir: Path
) -> tuple[dict[str, str], ChannelOpener]:
    """Return the addresses of the suite that runs here, replaced by the `given` ones, or only these if none runs here;
    and what opens channels to them."""
    if len(given) < len(PLACES) and (not given or StateDirectory(state_dir).endpoint() is not None):
        suite = running_suite(state_dir)
        channels = dataclasses.replace(channels, service_token_file=own_token_file(suite, token))
        given = {name: getattr(suite, name) for name in PLACES} | given
    return given, channel_opener(channels, token or None)


async def look(addresses: Mapping[str, str], opening: ChannelOpener) -> SuiteStatus:
    """Read the status of all processes concurrently; one that does not answer has a reason in place of its part."""

    async def ask(place: str, question: Callable[[Channel], Awaitable[T]]) -> T | None:
        if not (address := addresses.get(place)):
            return None
        with naming(address):
            async with opening(address) as channel:
                return await question(channel)

    found = await gathered(
        ask("controller", lambda channel: ControllerClient(channel).fleet(CALL_TIMEOUT_S)),
        {"": ask("frontdoor", lambda channel: FrontdoorClient(channel).status(CALL_TIMEOUT_S))},
        ask("gateway", lambda channel: GatewayClient(channel).statistics(CALL_TIMEOUT_S)),
    )
    return await with_cells(found, opening)


async def with_cells(status: SuiteStatus, opening: ChannelOpener) -> SuiteStatus:
    """Return the status with all cells, which the frontdoor knows; unchanged in a suite without cells."""
    first = status.frontdoor
    if first is None or not first.cells:
        return status

    async def ask(address: str) -> FrontdoorStatus:
        with naming(address):
            async with opening(address) as channel:
                return await FrontdoorClient(channel).status(CALL_TIMEOUT_S)

    places = {one.name: asyncio.sleep(0, first) if one.name == first.cell else ask(one.address) for one in first.cells}
    cells = await gathered(asyncio.sleep(0, status.fleet), places, asyncio.sleep(0, status.cache))
    return dataclasses.replace(cells, unanswered=status.unanswered | cells.unanswered)


async def keep_looking(
    addresses: Mapping[str, str], opening: ChannelOpener, record: Path | None, *, as_json: bool
) -> None:
    """Read the status every second; show the fleet and the history of its allocation, or print a line per status. Write
    the samples to `record`, if any."""
    history: deque[AllocationSample] = deque(maxlen=SHOWN_LOOKS)
    began = time.monotonic()
    with lines() if as_json else live_view(history) as show, open_record(record) as file:
        while True:
            started = time.monotonic()
            found = await look(addresses, opening)
            if (sample := sample_of(found, started - began)) is not None:
                history.append(sample)
                file.write(sample_line(sample))
                file.flush()
            show(found)
            await asyncio.sleep(max(LOOK_S - (time.monotonic() - started), 0.0))


@contextmanager
def live_view(history: Sequence[AllocationSample]) -> Iterator[Callable[[SuiteStatus], None]]:
    """Show each status in place of the previous one, with the history of the allocation. A process that does not answer
    keeps its last status."""
    told = LastTold()

    def show(found: SuiteStatus) -> None:
        filled, ages_s = told.filled(found, time.monotonic())
        view.update(Group(*render(filled, ages_s), *movement(history)), refresh=True)

    with Live(auto_refresh=False, screen=False) as view:
        yield show


@contextmanager
def lines() -> Iterator[Callable[[SuiteStatus], None]]:
    """Print each status as a line of JSON."""
    yield lambda found: click.echo(line_of(found))


def line_of(found: SuiteStatus) -> str:
    """Return a status as one line of JSON, with the present time."""
    return json.dumps({"at_ms": time.time_ns() // 1_000_000, **as_document(found)}, ensure_ascii=False)


def open_record(record: Path | None) -> TextIO:
    """Open a file for appending, the null device without a name. Raises InvalidArgument."""
    try:
        return (record or Path(os.devnull)).open("a", encoding="utf-8")
    except OSError as error:
        raise InvalidArgument.of("record", f"{record} cannot be written: {error.strerror}") from None
