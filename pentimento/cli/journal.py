"""`pentimento journal`."""

import os
import sys

import click

from pentimento.supervisor.child import source_path


@click.group()
def journal() -> None:
    """Repair a frontdoor's journal, where an operator must decide."""


@journal.command(context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def renew(flags: tuple[str, ...]) -> None:
    """Make a lost or restored journal newer than every earlier one: `--ledger-url URL`, or the frontdoor's settings,
    and `--above EPOCH`, which the frontdoor's log names if workers reject it (STALE_EPOCH)."""
    os.environ["PYTHONPATH"] = source_path()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "services.frontdoor.renewal", *flags])
