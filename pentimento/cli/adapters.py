"""`pentimento adapters`: LoRAs of a running suite, and entries of directories in their registry."""

import hashlib
import json
from pathlib import Path
from typing import Any

import click

from pentimento.cli.calls import ask_controller, chunks_of
from pentimento.cli.connection import controller_options
from pentimento.cli.models import signing_key_option, wall_ms
from pentimento.cli.options import FiniteRange, json_option, say
from pentimento.cli.programs import described
from pentimento.clients.controller import AdapterRegistryClient
from pentimento.domain.adapters import (
    ADAPTED_FAMILIES,
    ADAPTER_NAME_RULE,
    EMBEDDINGS_FOLDER,
    IP_ADAPTERS_FOLDER,
    Adapter,
    LoraUpload,
    is_adapter_name,
    is_digest,
)
from pentimento.domain.errors import InvalidArgument
from pentimento.files.adapter_registry import DEPTH_MODEL, read_adapters
from pentimento.files.ed25519_keys import read_private_key
from pentimento.files.signed_entries import signed_upload

REGISTRY = "registry.json"
NONE_UPLOADED = (
    "no LoRA was uploaded. `pentimento adapters add FILE --name NAME --family FAMILY --licence LICENCE` uploads one;"
    " `pentimento up --adapters DIR --controlnets REGISTRY.JSON` serves those of a directory (`tiny`: those of the tiny"
    " models), which `pentimento adapters register DIR` describes and `pentimento status` lists"
)


@click.group()
def adapters() -> None:
    """Add, list and remove LoRAs of a running suite (needs an administrator's token), and register directories."""


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
@signing_key_option(required=False)
@controller_options
def add(
    file: Path,
    name: str,
    family: str,
    licence: str,
    base_digest: str,
    latest_start_fraction: float,
    signing_key: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Upload FILE, a LoRA in a safetensors file, and serve it under a name."""
    size_bytes, digest = _measured(file)
    upload = LoraUpload(name, family, licence, size_bytes, digest, base_digest, latest_start_fraction)
    if signing_key is not None:
        upload = signed_upload(upload, read_private_key(signing_key, "signing_key"), wall_ms())
    added = ask_controller(options, AdapterRegistryClient, lambda client: client.add_lora(upload, chunks_of(file)))
    say(_document(added), _line(added), as_json=as_json)


@adapters.command(name="list")
@controller_options
def list_all(as_json: bool, **options: Any) -> None:
    """List uploaded LoRAs, as JSON one per line. `pentimento status` also shows LoRAs from directories."""
    found = ask_controller(options, AdapterRegistryClient, lambda client: client.loras())
    for adapter in found:
        say(_document(adapter), _line(adapter), as_json=as_json)
    if not found and not as_json:
        click.echo(NONE_UPLOADED)


@adapters.command()
@click.argument("name")
@controller_options
def remove(name: str, as_json: bool, **options: Any) -> None:
    """Remove a LoRA: new requests cannot name it."""
    ask_controller(options, AdapterRegistryClient, lambda client: client.remove_lora(name))
    say({"removed": name}, f"{name} is removed for new requests", as_json=as_json)


@adapters.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", default="", help="by which requests ask for it [that of the directory, in lower case]")
@click.option("--family", default="", help=f"of the models that a LoRA changes: {', '.join(ADAPTED_FAMILIES)}")
@click.option("--licence", required=True, help="SPDX identifier or name")
@click.option("--base-digest", default="", help="of the one model that it changes")
@json_option
def register(directory: Path, name: str, family: str, licence: str, base_digest: str, as_json: bool) -> None:
    """Register DIRECTORY, a LoRA, a ControlNet or a depth model, in the registry.json next to it, with its digest
    and the options. `pentimento up --adapters` and `--controlnets` read it at their start."""
    directory = directory.resolve()
    entry = entry_of(directory, name, family, licence, base_digest)
    registry = directory.parent / REGISTRY
    unnamed = write_entry(registry, entry)
    say({**entry, "registry": str(registry)}, words(entry, registry, unnamed), as_json=as_json)


def _measured(file: Path) -> tuple[int, str]:
    """Return a file's size in bytes and its digest."""
    found, size_bytes = hashlib.sha256(), 0
    for chunk in chunks_of(file):
        found.update(chunk)
        size_bytes += len(chunk)
    return size_bytes, f"sha256:{found.hexdigest()}"


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


def entry_of(directory: Path, name: str, family: str, licence: str, base_digest: str) -> dict[str, Any]:
    """Return the registry's entry. InvalidArgument names a wrong option, FailedPrecondition invalid files."""
    name = name or directory.name.lower().replace(" ", "-")
    if not is_adapter_name(name):
        raise InvalidArgument.of("name", f"{ADAPTER_NAME_RULE}, got {name[:80]!r}")
    if base_digest and not is_digest(base_digest):
        raise InvalidArgument.of("base-digest", f"must be sha256:<64 hex digits>, got {base_digest[:80]!r}")
    found = describe(directory)
    entry = {"name": name, "kind": found["kind"], "path": directory.name, "digest": found["digest"], "licence": licence}
    if found["kind"] == DEPTH_MODEL:
        if family or base_digest:
            raise InvalidArgument.of("family" if family else "base-digest", "must be empty for a depth model")
        return entry
    own = found["family"] or family
    if own not in ADAPTED_FAMILIES or family not in ("", own):
        limit = f"must be {found['family']}" if found["family"] else f"must be one of {', '.join(ADAPTED_FAMILIES)}"
        raise InvalidArgument.of("family", f"{limit}, got {family[:80]!r}")
    return {**entry, "family": own, **({"base": {"digest": base_digest}} if base_digest else {})}


def describe(directory: Path) -> dict[str, str]:
    """Return kind, digest and family as a worker does. FailedPrecondition for invalid files."""
    text = described("services.unet_worker.describe_adapter", ("--adapter", directory), "BAD_ADAPTER")
    found: dict[str, str] = json.loads(text)
    return found


def write_entry(registry: Path, entry: dict[str, Any]) -> list[str]:
    """Write the entry into the file, in place of an earlier one of its name. Return the directories in the folder
    without an entry: they are not served. FailedPrecondition for an invalid file."""
    document: dict[str, Any] = {"version": 1, "models": []}
    if registry.is_file():
        read_adapters(registry)
        document = json.loads(registry.read_text(encoding="utf-8"))
    others = [one for one in document["models"] if one.get("name") != entry["name"]]
    document["models"] = [*others, entry]
    fresh = registry.with_suffix(".json.new")
    fresh.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(registry)
    named = {one.get("path") for one in document["models"]}
    files = (*registry.parent.glob("*.safetensors"), *registry.parent.glob("*/*.safetensors"))
    there = {file.relative_to(registry.parent).parts[0] for file in files}
    return sorted(there - named - {EMBEDDINGS_FOLDER, IP_ADAPTERS_FOLDER})


def words(entry: dict[str, Any], registry: Path, unnamed: list[str]) -> str:
    """Format the entry, the command that serves it, and the directories without an entry."""
    served = f"--adapters {registry.parent}" if entry["kind"] == "lora" else f"--controlnets {registry}"
    whose = f" for {entry['family']}" if "family" in entry else ""
    line = f"{entry['name']}: {entry['kind']}{whose}, {entry['digest']}, in {registry}"
    left = f"\nnot in the registry, so not served: {', '.join(unnamed)}" if unnamed else ""
    return f"{line}\n`pentimento up {served}` serves it{left}"
