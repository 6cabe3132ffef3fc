"""`pentimento down`."""

import os
import signal
from pathlib import Path

import click

from pentimento.cli.connection import state_dir_option
from pentimento.cli.detached import wait_until_gone
from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.state import StateDirectory


@click.command()
@click.option("--now", is_flag=True, help="do not drain")
@state_dir_option
def down(now: bool, state_dir: Path) -> None:
    """Stops the suite of this state directory: accepted requests are finished first."""
    state = StateDirectory(state_dir)
    owner = state.owner()
    if owner is None:
        raise FailedPrecondition("NO_SUITE", f"no suite runs on {state_dir}")
    os.kill(owner, signal.SIGQUIT if now else signal.SIGTERM)
    wait_until_gone(state, state_dir)
