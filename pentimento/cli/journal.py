"""`pentimento journal`."""

import click

from pentimento.cli.forwarding import become


@click.group()
def journal() -> None:
    """Repair a frontdoor's journal, where an operator must decide."""


@journal.command(context_settings={"ignore_unknown_options": True})
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def renew(flags: tuple[str, ...]) -> None:
    """Make a lost or restored journal newer than every earlier one: `--ledger-url URL`, or the frontdoor's settings,
    and `--above EPOCH`, which the frontdoor's log names if workers reject it (STALE_EPOCH)."""
    become("services.frontdoor.renewal", flags)
