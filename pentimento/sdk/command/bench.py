"""`pentimento bench profile`."""

import os
import sys

import click

from pentimento.sdk.supervisor.child import source_path
from pentimento.sdk.supervisor.models import find_model


@click.group()
def bench() -> None:
    """Measures this machine."""


@bench.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("model")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def profile(model: str, flags: tuple[str, ...]) -> None:
    """Writes what MODEL (a registry name or a diffusers directory) costs here: seconds of a denoising step by size and
    batch, and memory. `pentimento bench profile MODEL --help` lists the FLAGS."""
    os.environ["PYTHONPATH"] = source_path()
    command = [sys.executable, "-P", "-m", "services.unet_worker.profile", "--model", str(find_model(model).path)]
    os.execv(sys.executable, [*command, *flags])
