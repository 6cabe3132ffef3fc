"""Output of commands for programs: one JSON document, or one per line, in place of text. docs/command-json.md names
the fields."""

import json
from collections.abc import Callable
from typing import Any

import click

json_option: Callable[[Any], Any] = click.option("--json", "as_json", is_flag=True, help="print JSON instead of words")


def say(document: Any, words: str, *, as_json: bool) -> None:
    """Print the document on one line, or the words."""
    click.echo(json.dumps(document, ensure_ascii=False) if as_json else words)
