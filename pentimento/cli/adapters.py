"""`pentimento adapters`: LoRAs of a running suite's registry."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from pentimento.cli.connection import read_token, running_suite, state_dir_option, token_option
from pentimento.clients.adapters import CHUNK_BYTES, AdapterRegistryClient
from pentimento.domain.adapters import Adapter, LoraUpload
from pentimento.rpc.channel import open_channel
from pentimento.rpc.settings import RpcChannelSettings

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])
controller_option = click.option("--controller-address", help="host:port or unix:/path, instead of the suite's here")


def registry_options(command: Command) -> Command:
    """Which controller to ask, and as whom: an operator, where there are tokens."""
    for option in (controller_option, token_option, state_dir_option):
        command = option(command)
    return command


@click.group()
def adapters() -> None:
    """Adds, lists and removes LoRAs while the suite serves."""


@adapters.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", required=True, help="by which requests ask for it")
@click.option("--family", required=True, help="of the models that it changes")
@click.option("--licence", required=True)
@click.option("--base-digest", default="", help="of the one model that it changes")
@click.option(
    "--latest-start-fraction",
    type=click.FloatRange(0.0, 1.0),
    default=0.0,
    help="share of the steps that may run without it, as `bench lora-bound` measured it",
)
@registry_options
def add(
    file: Path,
    name: str,
    family: str,
    licence: str,
    base_digest: str,
    latest_start_fraction: float,
    **whom: Any,
) -> None:
    """Uploads FILE, a LoRA in a safetensors file, and has it served under a name."""
    size_bytes, digest = _measured(file)
    upload = LoraUpload(name, family, licence, size_bytes, digest, base_digest, latest_start_fraction)
    added = _asked(lambda client: client.add_lora(upload, _chunks(file)), **whom)
    click.echo(_line(added))


@adapters.command(name="list")
@registry_options
def list_all(**whom: Any) -> None:
    """Shows the LoRAs that were uploaded."""
    for adapter in _asked(lambda client: client.loras(), **whom):
        click.echo(_line(adapter))


@adapters.command()
@click.argument("name")
@registry_options
def remove(name: str, **whom: Any) -> None:
    """Takes a LoRA away: no new request may ask for it."""
    _asked(lambda client: client.remove_lora(name), **whom)


def _asked(
    question: Callable[[AdapterRegistryClient], Awaitable[T]],
    *,
    controller_address: str | None,
    token: str,
    state_dir: Path,
) -> T:
    given = read_token(token) or None
    suite = None if controller_address else running_suite(state_dir)

    async def ask() -> T:
        address = controller_address or (suite.controller if suite else "")
        async with open_channel(address, RpcChannelSettings(), given) as channel:
            return await question(AdapterRegistryClient(channel))

    return asyncio.run(ask())


def _measured(file: Path) -> tuple[int, str]:
    """Bytes and digest."""
    found, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(file):
        found.update(chunk)
        size_bytes += len(chunk)
    return size_bytes, f"sha256:{found.hexdigest()}"


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk


def _line(adapter: Adapter) -> str:
    size_bytes = adapter.object.size_bytes if adapter.object is not None else 0
    base = adapter.base_digest or adapter.family
    return f"{adapter.name}  {adapter.digest}  {size_bytes / 2**20:.1f} MiB  for {base}  {adapter.licence}"
