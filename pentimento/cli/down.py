"""`pentimento down`."""

import os
import signal
from pathlib import Path

import click

from pentimento.cli.connection import state_dir_option
from pentimento.cli.detached import wait_until_gone
from pentimento.cli.json_output import json_option, say
from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.state import StateDirectory


@click.command()
@click.option("--now", is_flag=True, help="do not drain")
@json_option
@state_dir_option
def down(now: bool, as_json: bool, state_dir: Path) -> None:
    """Stop the suite of this state directory; accepted requests are finished first."""
    state = StateDirectory(state_dir)
    owner = state.owner()
    if owner is None:
        raise FailedPrecondition("NO_SUITE", f"no suite runs on {state_dir}")
    os.kill(owner, signal.SIGQUIT if now else signal.SIGTERM)
    wait_until_gone(state)
    say({"stopped": str(state_dir)}, f"stopped the suite of {state_dir}", as_json=as_json)
