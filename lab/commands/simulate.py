"""`pentimento simulate SCENARIO`: the command becomes `python -m lab.simulator`, no part of the client."""

import importlib.util
import os
import sys

import click

from pentimento.domain.errors import FailedPrecondition
from pentimento.supervisor.child import source_path


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
    help="play a scenario in virtual time",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def simulate(arguments: tuple[str, ...]) -> None:
    if importlib.util.find_spec("numpy") is None:
        raise FailedPrecondition("LIBRARY_MISSING", "the simulator needs numpy: pip install numpy")
    os.environ["PYTHONPATH"] = source_path()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "lab.simulator", *arguments])
