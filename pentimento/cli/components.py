"""`pentimento components`: the files of models and LoRAs that this host keeps on its disk."""

import json
from pathlib import Path
from typing import Any

import click

from pentimento.cli.connection import state_dir_option
from pentimento.cli.options import json_option, say
from pentimento.cli.programs import described

_DIRECTORY = click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=None,
    help="`component_cache_dir` of the workers [that of the suite that runs here]",
)


@click.group()
def components() -> None:
    """List the components on this host's disk, keep some, and delete others. Running workers are not interrupted."""


@components.command(name="list")
@_DIRECTORY
@state_dir_option
@json_option
def list_all(directory: Path | None, state_dir: Path, as_json: bool) -> None:
    """List digests and sizes, as JSON one per line."""
    found = _asked("list", "", directory, state_dir)
    for one in found:
        pinned = "  pinned" if one["pinned"] else ""
        say(one, f"{one['digest']}  {one['size_bytes'] / 2**20:.1f} MiB{pinned}", as_json=as_json)
    if not found and not as_json:
        click.echo("no component is held")


@components.command()
@click.argument("digest")
@click.option("--off", is_flag=True, help="let it be evicted again")
@_DIRECTORY
@state_dir_option
@json_option
def pin(digest: str, off: bool, directory: Path | None, state_dir: Path, as_json: bool) -> None:
    """Never evict the component DIGEST (sha256:…); it may be fetched later."""
    _asked("unpin" if off else "pin", digest, directory, state_dir)
    say({"digest": digest, "pinned": not off}, f"{digest} is {'not ' if off else ''}pinned", as_json=as_json)


@components.command()
@click.argument("digest")
@_DIRECTORY
@state_dir_option
@json_option
def drop(digest: str, directory: Path | None, state_dir: Path, as_json: bool) -> None:
    """Delete the component DIGEST (sha256:…) unless it is in use; a request that needs it fetches it again."""
    _asked("drop", digest, directory, state_dir)
    say({"dropped": digest}, f"{digest} is deleted", as_json=as_json)


def _asked(action: str, digest: str, directory: Path | None, state_dir: Path) -> list[dict[str, Any]]:
    place = directory or state_dir / "components"
    flags = ("--component-cache-dir", place, "--action", action, "--digest", digest)
    found: list[dict[str, Any]] = json.loads(described("services.unet_worker.components", flags, "BAD_COMPONENT"))
    return found
