"""`pentimento adapters`: LoRAs of a running suite's registry."""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from pentimento.cli.calls import ask_controller, controller_options
from pentimento.cli.json_output import say
from pentimento.cli.numbers import FiniteRange
from pentimento.cli.register_adapter import register
from pentimento.clients.adapters import CHUNK_BYTES, AdapterRegistryClient
from pentimento.domain.adapters import ADAPTED_FAMILIES, Adapter, LoraUpload

T = TypeVar("T")
NONE_UPLOADED = (
    "no LoRA was uploaded. `pentimento adapters add FILE --name NAME --family FAMILY --licence LICENCE` uploads one;"
    " `pentimento up --loras DIR --controlnets REGISTRY.JSON` serves those of a directory (`tiny`: those of the tiny"
    " models), which `pentimento adapters register DIR` describes and `pentimento status` lists"
)


@click.group()
def adapters() -> None:
    """Add, list and remove LoRAs of a running suite (needs an administrator's token), and register directories."""


adapters.add_command(register)


@adapters.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", required=True, help="by which requests ask for it")
@click.option("--family", required=True, help=f"of the models that it changes: {', '.join(ADAPTED_FAMILIES)}")
@click.option("--licence", required=True, help="SPDX identifier or name")
@click.option("--base-digest", default="", help="of the one model that it changes")
@click.option(
    "--latest-start-fraction",
    type=FiniteRange(0.0, 1.0),
    default=0.0,
    help="share of the steps that may run without it, on every model that it changes (`profile lora`)",
)
@controller_options
def add(
    file: Path,
    name: str,
    family: str,
    licence: str,
    base_digest: str,
    latest_start_fraction: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Upload FILE, a LoRA in a safetensors file, and serve it under a name."""
    size_bytes, digest = _measured(file)
    upload = LoraUpload(name, family, licence, size_bytes, digest, base_digest, latest_start_fraction)
    added = _asked(options, lambda client: client.add_lora(upload, _chunks(file)))
    say(_document(added), _line(added), as_json=as_json)


@adapters.command(name="list")
@controller_options
def list_all(as_json: bool, **options: Any) -> None:
    """List uploaded LoRAs, as JSON one per line. `pentimento status` also shows LoRAs from directories."""
    found = _asked(options, lambda client: client.loras())
    for adapter in found:
        say(_document(adapter), _line(adapter), as_json=as_json)
    if not found and not as_json:
        click.echo(NONE_UPLOADED)


@adapters.command()
@click.argument("name")
@controller_options
def remove(name: str, as_json: bool, **options: Any) -> None:
    """Remove a LoRA: new requests cannot name it."""
    _asked(options, lambda client: client.remove_lora(name))
    say({"removed": name}, f"{name} is removed for new requests", as_json=as_json)


def _asked(options: dict[str, Any], question: Callable[[AdapterRegistryClient], Awaitable[T]]) -> T:
    return ask_controller(options, lambda channel: question(AdapterRegistryClient(channel)))


def _measured(file: Path) -> tuple[int, str]:
    """Return a file's size in bytes and its digest."""
    found, size_bytes = hashlib.sha256(), 0
    for chunk in _chunks(file):
        found.update(chunk)
        size_bytes += len(chunk)
    return size_bytes, f"sha256:{found.hexdigest()}"


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield chunk


def _document(adapter: Adapter) -> dict[str, Any]:
    """Return a LoRA as a JSON document."""
    return {
        "name": adapter.name,
        "family": adapter.family,
        "base_digest": adapter.base_digest,
        "digest": adapter.digest,
        "size_bytes": adapter.object.size_bytes if adapter.object is not None else 0,
        "licence": adapter.licence,
    }


def _line(adapter: Adapter) -> str:
    size_bytes = adapter.object.size_bytes if adapter.object is not None else 0
    base = adapter.base_digest or adapter.family
    return f"{adapter.name}  {adapter.digest}  {size_bytes / 2**20:.1f} MiB  for {base}  {adapter.licence}"
