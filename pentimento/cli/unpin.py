"""`pentimento unpin IMAGE.png`."""

from pathlib import Path
from typing import Any

import click

from pentimento.cli.calls import frontdoor_client
from pentimento.cli.connection import connection_options
from pentimento.cli.json_output import say
from pentimento.cli.replay import read_file, request_id_of


@click.command()
@click.argument("image", metavar="IMAGE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@connection_options
def unpin(image: Path, as_json: bool, **options: Any) -> None:
    """End the pin of IMAGE: the cache may evict its start again."""
    request_id = request_id_of(read_file(image))
    with frontdoor_client(options) as client:
        client.unpin(request_id)
    words = f"{image} is unpinned"
    say({"file": str(image), "request_id": request_id, "unpinned": True}, words, as_json=as_json)
