"""`pentimento pin IMAGE.png --for 30d`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pentimento.cli.calls import frontdoor_client
from pentimento.cli.connection import connection_options
from pentimento.cli.durations import duration_ms
from pentimento.cli.json_output import say
from pentimento.cli.replay import read_file, request_id_of
from pentimento.domain.image_request import PinnedImage


@click.command()
@click.argument("image", metavar="IMAGE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--for", "duration", required=True, metavar="TIME", help="from now: 30d, 12h, 90m")
@connection_options
def pin(image: Path, duration: str, as_json: bool, **options: Any) -> None:
    """Keep the start of IMAGE, a PNG of `pentimento generate`, so that it can be replayed until then.

    A repeated call sets a new time. Input images are kept only by `generate --pin`; otherwise a replay needs them
    again.
    """
    request_id, asked_ms = request_id_of(read_file(image)), duration_ms("for", duration)
    with frontdoor_client(options) as client:
        pinned = client.pin(request_id, asked_ms)
    say({"file": str(image), **vars(pinned)}, told(image, pinned), as_json=as_json)


def told(image: Path, pinned: PinnedImage) -> str:
    """Describe a pin: its end, its size and the inputs that a replay needs."""
    until = datetime.fromtimestamp(pinned.expires_at_ms / 1000, UTC)
    needs = "" if pinned.inputs_kept else "; a replay needs its input image"
    return f"{image} can be replayed until {until:%Y-%m-%d %H:%M} UTC ({pinned.size_bytes} bytes pinned{needs})"
