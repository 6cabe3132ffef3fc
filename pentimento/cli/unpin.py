"""`pentimento unpin IMAGE.png`."""

from pathlib import Path
from typing import Any

import click

from pentimento.cli.calls import frontdoor_client
from pentimento.cli.connection import connection_options
from pentimento.cli.json_output import json_option, say
from pentimento.cli.replay import read_file, request_id_of


@click.command()
@click.argument("picture", metavar="IMAGE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@connection_options
def unpin(picture: Path, as_json: bool, **options: Any) -> None:
    """End the pin of IMAGE: the cache may evict its start again."""
    request_id = request_id_of(read_file(picture))
    with frontdoor_client(options) as client:
        client.unpin(request_id)
    words = f"{picture} is unpinned"
    say({"file": str(picture), "request_id": request_id, "unpinned": True}, words, as_json=as_json)
