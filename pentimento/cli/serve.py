"""`pentimento serve SERVICE`."""

import os
import sys

import click

from pentimento.cli.forwarding import ForwardingCommand
from pentimento.supervisor.child import source_path

SERVICES = {
    "frontdoor": "services.frontdoor",
    "edge": "services.edge",
    "embedder": "services.embedder",
    "vectordb-gateway": "services.vectordb_gateway",
    "unet-worker": "services.unet_worker",
    "controller": "services.controller",
    "controlnet-svc": "services.controlnet_svc",
    "discriminator": "services.discriminator",
    "emulated-worker": "services.unet_worker.emulation",
    "emulated-discriminator": "services.discriminator.emulated",
}


@click.command(cls=ForwardingCommand, context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("service", type=click.Choice(sorted(SERVICES)))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(service: str, flags: tuple[str, ...]) -> None:
    """Runs one service in the foreground; FLAGS go to it (`pentimento serve frontdoor --help` lists them)."""
    os.environ["PYTHONPATH"] = source_path()
    os.execv(sys.executable, [sys.executable, "-P", "-m", SERVICES[service], *flags])
