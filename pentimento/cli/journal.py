"""`pentimento journal`."""

import os
import sys

import click

from pentimento.supervisor.child import source_path


@click.group()
def journal() -> None:
    """Mends what only an operator can decide about a frontdoor's journal."""


@journal.command(context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def renew(flags: tuple[str, ...]) -> None:
    """Makes a journal that was lost or restored newer than every one before: `--ledger-url URL`, or the frontdoor's own
    settings, and `--above EPOCH`, which its log names where workers refuse it (STALE_EPOCH)."""
    os.environ["PYTHONPATH"] = source_path()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "services.frontdoor.renewal", *flags])
