"""`pentimento serve SERVICE`."""

import click

from pentimento.cli.forwarding import ForwardingCommand, become
from pentimento.plugins import SERVICES as SERVICES_GROUP
from pentimento.plugins import plugin_module

SERVICES = {
    "frontdoor": "services.frontdoor",
    "edge": "services.edge",
    "embedder": "services.embedder",
    "vectordb-gateway": "services.vectordb_gateway",
    "unet-worker": "services.unet_worker",
    "controller": "services.controller",
    "controlnet-svc": "services.controlnet_svc",
    "discriminator": "services.discriminator",
}
PLUGINS = ("emulated-worker", "emulated-discriminator", "paced-worker", "paced-controlnets")


@click.command(cls=ForwardingCommand, context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("service", type=click.Choice(sorted((*SERVICES, *PLUGINS))))
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def serve(service: str, flags: tuple[str, ...]) -> None:
    """Run one service in the foreground; FLAGS go to it (`pentimento serve frontdoor --help` lists them)."""
    become(SERVICES.get(service) or plugin_module(SERVICES_GROUP, service, f"pentimento serve {service}"), flags)
