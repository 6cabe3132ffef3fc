"""`pentimento adapters register`: the entry of a LoRA or a ControlNet in the registry next to its directory."""

import json
from pathlib import Path
from typing import Any

import click

from pentimento.cli.forwarding import described
from pentimento.cli.json_output import json_option, say
from pentimento.domain.adapters import ADAPTED_FAMILIES, ADAPTER_NAME_RULE, is_adapter_name, is_digest
from pentimento.domain.errors import InvalidArgument
from pentimento.files.adapter_registry import read_adapters

REGISTRY = "registry.json"


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", default="", help="by which requests ask for it [that of the directory, in lower case]")
@click.option("--family", default="", help=f"of the models that a LoRA changes: {', '.join(ADAPTED_FAMILIES)}")
@click.option("--licence", required=True, help="SPDX identifier or name")
@click.option("--base-digest", default="", help="of the one model that it changes")
@json_option
def register(directory: Path, name: str, family: str, licence: str, base_digest: str, as_json: bool) -> None:
    """Register DIRECTORY, a LoRA or a ControlNet, in the registry.json next to it, with its digest and the options.
    `pentimento up --loras` and `--controlnets` read it at their start."""
    directory = directory.resolve()
    entry = entry_of(directory, name, family, licence, base_digest)
    registry = directory.parent / REGISTRY
    unnamed = write_entry(registry, entry)
    say({**entry, "registry": str(registry)}, words(entry, registry, unnamed), as_json=as_json)


def entry_of(directory: Path, name: str, family: str, licence: str, base_digest: str) -> dict[str, Any]:
    """Return the registry's entry. InvalidArgument names a wrong option, FailedPrecondition invalid files."""
    name = name or directory.name.lower().replace(" ", "-")
    if not is_adapter_name(name):
        raise InvalidArgument.of("name", f"{ADAPTER_NAME_RULE}, got {name[:80]!r}")
    if base_digest and not is_digest(base_digest):
        raise InvalidArgument.of("base-digest", f"must be sha256:<64 hex digits>, got {base_digest[:80]!r}")
    found = describe(directory)
    own = found["family"] or family
    if own not in ADAPTED_FAMILIES or family not in ("", own):
        limit = f"must be {found['family']}" if found["family"] else f"must be one of {', '.join(ADAPTED_FAMILIES)}"
        raise InvalidArgument.of("family", f"{limit}, got {family[:80]!r}")
    entry = {"name": name, "kind": found["kind"], "family": own, "path": directory.name, "digest": found["digest"]}
    base = {"base": {"digest": base_digest}} if base_digest else {}
    return {**entry, **base, "licence": licence}


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
    return sorted(there - named)


def words(entry: dict[str, Any], registry: Path, unnamed: list[str]) -> str:
    """Format the entry, the command that serves it, and the directories without an entry."""
    served = f"--controlnets {registry}" if entry["kind"] == "controlnet" else f"--loras {registry.parent}"
    line = f"{entry['name']}: {entry['kind']} for {entry['family']}, {entry['digest']}, in {registry}"
    left = f"\nnot in the registry, so not served: {', '.join(unnamed)}" if unnamed else ""
    return f"{line}\n`pentimento up {served}` serves it{left}"
